// Compiled with -ffp-contract=fast: where the machine has fused multiply-adds they are used.
#include "reference/plain_product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "reference/number.h"

#define RUNMAX_INLINE inline __attribute__((always_inline))

namespace runmax::reference {
namespace {

constexpr int64_t kDepthBlock = 256;
constexpr int kRows = 6;  // of a register block; two vectors wide

template <class Real>
struct Vector {
  typedef Real type __attribute__((vector_size(32)));
};

// One register block: kCount rows of c, one panel, one block of depth.
template <class Real, int kCount>
RUNMAX_INLINE void block(const Real* a, int64_t a_stride, const Real* panel, Real* c,
                         int64_t c_stride, int64_t depth, bool first) {
  using Vec = typename Vector<Real>::type;
  constexpr int64_t kLanes = kPanel<Real> / 2;
  Vec sum[kCount][2] = {};
  for (int64_t d = 0; d < depth; ++d) {
    Vec b[2];
    __builtin_memcpy(b, panel + d * kPanel<Real>, sizeof b);
    for (int r = 0; r < kCount; ++r) {
      const Real x = a[r * a_stride + d];
      sum[r][0] += x * b[0];
      sum[r][1] += x * b[1];
    }
  }
  for (int r = 0; r < kCount; ++r) {
    for (int half = 0; half < 2; ++half) {
      Real* at = c + r * c_stride + half * kLanes;
      Vec old{};
      if (!first) __builtin_memcpy(&old, at, sizeof old);
      old += sum[r][half];
      __builtin_memcpy(at, &old, sizeof old);
    }
  }
}

template <class Real>
RUNMAX_INLINE void product_body(const Real* a, int64_t a_stride, const Real* panels, Real* c,
                                int64_t c_stride, int64_t rows, int64_t columns, int64_t depth) {
  for (int64_t begin = 0; begin == 0 || begin < depth; begin += kDepthBlock) {
    const int64_t size = std::min(kDepthBlock, depth - begin);
    for (int64_t column = 0; column < columns; column += kPanel<Real>) {
      const Real* panel = panels + column * depth + begin * kPanel<Real>;
      int64_t row = 0;
      for (; row + kRows <= rows; row += kRows) {
        block<Real, kRows>(a + row * a_stride + begin, a_stride, panel, c + row * c_stride + column,
                           c_stride, size, begin == 0);
      }
      for (; row < rows; ++row) {
        block<Real, 1>(a + row * a_stride + begin, a_stride, panel, c + row * c_stride + column,
                       c_stride, size, begin == 0);
      }
    }
  }
}

// exp(x) in double for x <= 0, to about 1e-16: rounding it to float rounds correctly but for ties
// closer than that. -inf and what is below -700 give less than any float can hold.
RUNMAX_INLINE double exp_of_negative(double x) {
  constexpr double kLog2e = 1.4426950408889634074, kLn2High = 6.93147180369123816490e-01,
                   kLn2Low = 1.90821492927058770002e-10, kToInteger = 0x1.8p52;
  x = x > -700 ? x : -700;
  const double shifted = x * kLog2e + kToInteger;
  const double n = shifted - kToInteger;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double sum = 1.0 / 6227020800;  // 1 / 13!
  sum = sum * r + 1.0 / 479001600;
  sum = sum * r + 1.0 / 39916800;
  sum = sum * r + 1.0 / 3628800;
  sum = sum * r + 1.0 / 362880;
  sum = sum * r + 1.0 / 40320;
  sum = sum * r + 1.0 / 5040;
  sum = sum * r + 1.0 / 720;
  sum = sum * r + 1.0 / 120;
  sum = sum * r + 1.0 / 24;
  sum = sum * r + 1.0 / 6;
  sum = sum * r + 0.5;
  sum = sum * r + 1;
  sum = sum * r + 1;
  // The integer n sits in the low bits of `shifted`; it goes into the exponent.
  return std::bit_cast<double>(std::bit_cast<int64_t>(sum) +
                               (std::bit_cast<int64_t>(shifted) << 52));
}

RUNMAX_INLINE float exp_and_sum_body(float* x, int64_t size, float max) {
  constexpr int kLanes = 16;
  float sum[kLanes] = {};
  const double shift = max;
  int64_t n = 0;
  for (; n + kLanes <= size; n += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      x[n + lane] = static_cast<float>(exp_of_negative(static_cast<double>(x[n + lane]) - shift));
    }
    for (int lane = 0; lane < kLanes; ++lane) sum[lane] += x[n + lane];
  }
  for (; n < size; ++n) {
    x[n] = static_cast<float>(exp_of_negative(static_cast<double>(x[n]) - shift));
    sum[n % kLanes] += x[n];
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sum[lane] += sum[lane + half];
  }
  return sum[0];
}

#if defined(__x86_64__)
#define RUNMAX_AVX2 __attribute__((target("avx2,fma")))

RUNMAX_AVX2 void product_avx2(const float* a, int64_t a_stride, const float* panels, float* c,
                              int64_t c_stride, int64_t rows, int64_t columns, int64_t depth) {
  product_body(a, a_stride, panels, c, c_stride, rows, columns, depth);
}
RUNMAX_AVX2 void product_avx2(const double* a, int64_t a_stride, const double* panels, double* c,
                              int64_t c_stride, int64_t rows, int64_t columns, int64_t depth) {
  product_body(a, a_stride, panels, c, c_stride, rows, columns, depth);
}
RUNMAX_AVX2 float exp_and_sum_avx2(float* x, int64_t size, float max) {
  return exp_and_sum_body(x, size, max);
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}
#endif

}  // namespace

void product(const float* a, int64_t a_stride, const float* panels, float* c, int64_t c_stride,
             int64_t rows, int64_t columns, int64_t depth) {
#if defined(__x86_64__)
  if (has_avx2()) return product_avx2(a, a_stride, panels, c, c_stride, rows, columns, depth);
#endif
  product_body(a, a_stride, panels, c, c_stride, rows, columns, depth);
}

void product(const double* a, int64_t a_stride, const double* panels, double* c, int64_t c_stride,
             int64_t rows, int64_t columns, int64_t depth) {
#if defined(__x86_64__)
  if (has_avx2()) return product_avx2(a, a_stride, panels, c, c_stride, rows, columns, depth);
#endif
  product_body(a, a_stride, panels, c, c_stride, rows, columns, depth);
}

float exp_and_sum(float* x, int64_t size, float max) {
#if defined(__x86_64__)
  if (has_avx2()) return exp_and_sum_avx2(x, size, max);
#endif
  return exp_and_sum_body(x, size, max);
}

double exp_and_sum(double* x, int64_t size, double max) {
  double sum[8] = {};
  for (int64_t n = 0; n < size; ++n) {
    x[n] = std::exp(x[n] - max);
    sum[n % 8] += x[n];
  }
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

void round_weights(float* x, int64_t size, runmax_dtype type) {
  if (type != RUNMAX_BF16 && type != RUNMAX_F16) return;
  // To nearest, ties to even, by adding just under half of the last kept bit, and that bit.
  const int dropped = 24 - format(type).precision;
  const uint32_t half = (1u << (dropped - 1)) - 1, keep = ~((1u << dropped) - 1);
  const float normal = type == RUNMAX_F16 ? 0x1p-14f : 0;
  for (int64_t n = 0; n < size; ++n) {
    const auto bits = std::bit_cast<uint32_t>(x[n]);
    const uint32_t rounded = (bits + half + (bits >> dropped & 1)) & keep;
    // F16's subnormal numbers are the multiples of 2^-24, as are F32's between 1/2 and 1.
    const float size = std::fabs(x[n]);
    const float subnormal = std::copysign((size + 0.5f) - 0.5f, x[n]);
    x[n] = size < normal ? subnormal : std::bit_cast<float>(rounded);
  }
  if (type == RUNMAX_F16) {  // dropout or an upstream gradient may lift it past the largest number
    constexpr float kInf = std::numeric_limits<float>::infinity();
    for (int64_t n = 0; n < size; ++n) {
      if (std::fabs(x[n]) > 65504) x[n] = std::copysign(kInf, x[n]);
    }
  }
}

}  // namespace runmax::reference
