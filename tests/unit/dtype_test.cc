// Every 16-bit value, and every place where rounding to one is decided.
#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace runmax {
namespace {

bool is_nan_f16(uint16_t bits) { return (bits & 0x7fff) > 0x7c00; }
bool is_nan_bf16(uint16_t bits) { return (bits & 0x7fff) > 0x7f80; }

TEST(Dtype, F16ToFloatIsExactForEveryValue) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const F16 half{static_cast<uint16_t>(bits)};
    const float value = to_float(half);
    const _Float16 expected = __builtin_bit_cast(_Float16, half);
    if (is_nan_f16(half.bits)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_NE(float_bits(value) & 0x00400000u, 0u) << "not quiet: " << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0);
    } else {
      ASSERT_EQ(float_bits(value), float_bits(static_cast<float>(expected))) << bits;
    }
  }
}

TEST(Dtype, Bf16ToFloatIsExactForEveryValue) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const Bf16 value{static_cast<uint16_t>(bits)};
    if (is_nan_bf16(value.bits)) {
      ASSERT_TRUE(std::isnan(to_float(value)));
      ASSERT_EQ(float_bits(to_float(value)), (bits << 16) | 0x00400000u);
    } else {
      ASSERT_EQ(float_bits(to_float(value)), bits << 16);
    }
  }
}

TEST(Dtype, RoundTripsEveryValue) {
  for (uint32_t bits = 0; bits < 1 << 16; ++bits) {
    const auto word = static_cast<uint16_t>(bits);
    ASSERT_EQ(to_f16(to_float(F16{word})).bits, is_nan_f16(word) ? word | 0x0200 : word);
    ASSERT_EQ(to_bf16(to_float(Bf16{word})).bits, is_nan_bf16(word) ? word | 0x0040 : word);
  }
}

// Around every 16-bit value, every tie between two, and 2^16 other floats of every exponent.
template <class Check>
void for_each_interesting_float(Check check) {
  for (uint32_t high = 0; high < 1 << 16; ++high) {
    for (const uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x2000u, 0x3000u,
                               0x7fffu, 0x8000u, 0x8001u, 0xefffu, 0xf000u, 0xf001u, 0xffffu}) {
      check(float_from_bits(high << 16 | low));
    }
  }
}

TEST(Dtype, FloatToF16RoundsToNearestEven) {
  for_each_interesting_float([](float x) {
    const F16 half = to_f16(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(is_nan_f16(half.bits) && (half.bits & 0x0200) != 0) << float_bits(x);
      ASSERT_EQ(half.bits >> 15, float_bits(x) >> 31);
    } else {
      const _Float16 expected = static_cast<_Float16>(x);
      ASSERT_EQ(half.bits, __builtin_bit_cast(uint16_t, expected)) << float_bits(x);
    }
  });
}

// Between the bf16 values below and above x (as doubles) the nearer one, the even one on a tie.
uint16_t expected_bf16(float x) {
  const uint32_t bits = float_bits(x);
  const auto below = static_cast<uint16_t>(bits >> 16);
  if ((bits & 0xffff) == 0) return below;
  const auto above = static_cast<uint16_t>(below + 1);
  // The value after the largest finite one counts as 2^128 here, and is infinity.
  const auto value = [](uint16_t word) {
    if ((word & 0x7fff) == 0x7f80) return std::copysign(0x1p128, word & 0x8000 ? -1.0 : 1.0);
    return static_cast<double>(float_from_bits(static_cast<uint32_t>(word) << 16));
  };
  const double to_below = std::fabs(static_cast<double>(x) - value(below));
  const double to_above = std::fabs(value(above) - static_cast<double>(x));
  if (to_below != to_above) return to_below < to_above ? below : above;
  return (below & 1) == 0 ? below : above;
}

TEST(Dtype, FloatToBf16RoundsToNearestEven) {
  for_each_interesting_float([](float x) {
    const Bf16 value = to_bf16(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(is_nan_bf16(value.bits) && (value.bits & 0x0040) != 0) << float_bits(x);
      ASSERT_EQ(value.bits >> 15, float_bits(x) >> 31);
    } else {
      ASSERT_EQ(value.bits, expected_bf16(x)) << float_bits(x);
    }
  });
}

TEST(Dtype, KnownValues) {
  static_assert(to_f16(1.0f).bits == 0x3c00);
  static_assert(to_f16(65504.0f).bits == 0x7bff);
  static_assert(to_f16(65519.996f).bits == 0x7bff);
  static_assert(to_f16(65520.0f).bits == 0x7c00);
  static_assert(to_f16(0x1p-24f).bits == 0x0001);
  static_assert(to_f16(0x1p-25f).bits == 0x0000);
  static_assert(to_f16(0x1.000002p-25f).bits == 0x0001);
  static_assert(to_bf16(1.0f).bits == 0x3f80);
  static_assert(to_bf16(3.3961775e38f).bits == 0x7f80);  // above the largest finite: infinity
  static_assert(round_to<float>(0.1f) == 0.1f);
  static_assert(round_to<Bf16>(-2.0f).bits == 0xc000);
  static_assert(round_to<F16>(-2.0f).bits == 0xc000);
}

#if defined(__x86_64__)
// Flush-to-zero modes of the caller change nothing.
TEST(Dtype, IgnoresFlushToZero) {
  constexpr unsigned kFlush = 0x8040;  // FTZ, DAZ
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | kFlush);
  volatile float tiny = 0x1p-24f;
  const uint16_t rounded = to_f16(tiny).bits;
  volatile uint16_t word = 1;
  const uint32_t widened = float_bits(to_float(F16{word}));
  const uint16_t subnormal = to_bf16(float_from_bits(uint32_t{word} << 16)).bits;
  __builtin_ia32_ldmxcsr(before);
  EXPECT_EQ(rounded, 1);
  EXPECT_EQ(widened, float_bits(0x1p-24f));
  EXPECT_EQ(subnormal, 1);
}
#endif

}  // namespace
}  // namespace runmax
