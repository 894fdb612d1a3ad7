// The 16-bit storage types: plain bits, converted by integer operations so that every backend and
// every instruction set agrees bit for bit. Rounding is to nearest, ties to even; subnormals are
// exact whatever the FTZ/DAZ mode; a NaN stays a NaN and becomes quiet, its upper payload kept.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace runmax {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

RUNMAX_INLINE constexpr uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
RUNMAX_INLINE constexpr float float_from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }

RUNMAX_INLINE constexpr float to_float(float x) { return x; }

RUNMAX_INLINE constexpr float to_float(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return float_from_bits(nan ? bits | 0x00400000u : bits);
}

RUNMAX_INLINE constexpr float to_float(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude < 0x0400u) {  // zero and subnormals: a multiple of 2^-24, normal as a float
    return float_from_bits(float_bits(static_cast<float>(magnitude) * 0x1p-24f) | sign);
  }
  if (magnitude < 0x7c00u) return float_from_bits(sign | ((magnitude << 13) + (112u << 23)));
  const uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
  return float_from_bits(sign | 0x7f800000u | (magnitude << 13) | quiet);
}

RUNMAX_INLINE constexpr Bf16 to_bf16(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

RUNMAX_INLINE constexpr F16 to_f16(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x01ffu);
  } else if (magnitude >= 0x47800000u) {  // 2^16 and above
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // normal; 65520 and above carries into infinity
    half = (magnitude + 0x0fffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  } else {  // the ulp of 0.5f is 2^-24, the smallest half: the addition rounds
    half = float_bits(float_from_bits(magnitude) + 0.5f) - float_bits(0.5f);
  }
  return {static_cast<uint16_t>(sign | half)};
}

// The value as type T stores it: round_to<Bf16>(x).
template <class T>
RUNMAX_INLINE constexpr T round_to(float x);
template <>
RUNMAX_INLINE constexpr float round_to<float>(float x) {
  return x;
}
template <>
RUNMAX_INLINE constexpr Bf16 round_to<Bf16>(float x) {
  return to_bf16(x);
}
template <>
RUNMAX_INLINE constexpr F16 round_to<F16>(float x) {
  return to_f16(x);
}

}  // namespace runmax
