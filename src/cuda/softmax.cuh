// The online softmax of a tensor-core kernel: state of the rows that a thread holds fragments of.
//
//   update:  reference' = reference, or the tile's maximum where that is more than kLag above it
//            alpha = 2^(reference - reference');  p = 2^(s - reference')
//            sum = sum * alpha + sum(p);  acc = acc * alpha + p V
//
// The reference need not be the maximum: any number near it gives the same result up to rounding.
// Letting it lag, row by row, saves nearly every rescaling of acc; p stays below 2^(kHead + kLag).
// With F16 it starts 2^-kHead below the maximum: weights then lie high in the type's range, and
// those of 2^-20 still have all their bits.
// Scores arrive either as dot products, of which one multiply-add makes the exponent in base 2
// (LogTwo), or in natural units, from which the reference is subtracted first (Natural): a bias of
// -FLT_MAX has no finite value in base 2.
#pragma once

#include "cuda/numeric.cuh"
#include "cuda/ptx/mma.cuh"

namespace runmax::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kLn2Rest = -1.9046543e-9f;  // ln(2) - kLn2

// In powers of two.
inline constexpr float kLag = 8;
template <class Element>
inline constexpr float kHead = 0;
template <>
inline constexpr float kHead<F16> = 7;

template <class Element>
struct LogTwo {
  float scale_log2;  // > 0
  static constexpr float kMayLag = kLag;
  __device__ __forceinline__ float reference(float top) const {
    return __fmaf_rn(top, scale_log2, -kHead<Element>);
  }
  __device__ __forceinline__ float weight(float dot, float reference) const {
    return ptx::exp2_approx(__fmaf_rn(dot, scale_log2, -reference));
  }
  __device__ __forceinline__ float alpha(float from, float to) const {
    return ptx::exp2_approx(from - to);
  }
};

template <class Element>
struct Natural {
  static constexpr float kMayLag = kLag * kLn2;
  __device__ __forceinline__ float reference(float top) const {
    return __fsub_rn(top, kHead<Element> * kLn2);
  }
  __device__ __forceinline__ float weight(float score, float reference) const {
    return ptx::exp2_approx(__fsub_rn(score, reference) * kLog2E);
  }
  __device__ __forceinline__ float alpha(float from, float to) const {
    return ptx::exp2_approx(__fsub_rn(from, to) * kLog2E);
  }
};

// Over the four lanes that share a row.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Rows 16 m + g and 16 m + g + 8 of a warp's tile, for m < kMTiles.
template <int kMTiles>
struct RowStates {
  float reference[kMTiles][2];
  float sum[kMTiles][2];  // of this lane's columns

  __device__ __forceinline__ void init() {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        reference[m][h] = kMinusInfinity<float>;
        sum[m][h] = 0;
      }
    }
  }

  // References for these scores. What was added up for a row before is to be multiplied by its
  // alpha; false: all of this warp's are 1.
  template <int kNTiles, class Units>
  __device__ __forceinline__ bool move(const float (&scores)[kMTiles][kNTiles][4],
                                       float (&alpha)[kMTiles][2], const Units& units) {
    bool moved = false;
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float top = fmaxf(scores[m][0][2 * h], scores[m][0][2 * h + 1]);
#pragma unroll
        for (int n = 1; n < kNTiles; ++n) {
          top = fmaxf(top, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
        }
        top = units.reference(quad_max(top));
        const float old = reference[m][h];
        const bool moves = top - old > Units::kMayLag;
        alpha[m][h] = moves ? units.alpha(old, top) : 1.0f;
        reference[m][h] = moves ? top : old;
        moved |= moves;
      }
    }
    const bool rescales = __any_sync(0xffffffffu, moved);
    if (rescales) {
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) sum[m][h] = __fmul_rn(sum[m][h], alpha[m][h]);
      }
    }
    return rescales;
  }

  // Scores become weights in place, and are added up.
  template <int kNTiles, class Units>
  __device__ __forceinline__ void weigh(float (&scores)[kMTiles][kNTiles][4], const Units& units) {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float subtract = safe_max(reference[m][h]);
        float even = 0;
        float odd = 0;
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
          float& a = scores[m][n][2 * h];
          float& b = scores[m][n][2 * h + 1];
          a = units.weight(a, subtract);
          b = units.weight(b, subtract);
          even += a;
          odd += b;
        }
        sum[m][h] += even + odd;
      }
    }
  }
};

// Rows g and g + 8 of one m-tile of acc.
template <int kDTiles>
__device__ __forceinline__ void rescale(float (&acc)[kDTiles][4], const float (&alpha)[2]) {
#pragma unroll
  for (int d = 0; d < kDTiles; ++d) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[d][i] *= alpha[i / 2];
  }
}

}  // namespace runmax::cuda
