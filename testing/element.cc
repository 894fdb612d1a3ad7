#include "testing/element.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace runmax::testing {
namespace {

template <class T>
T read(const void* base, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + index * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

template <class T>
void write(void* base, int64_t index, T value) {
  std::memcpy(static_cast<char*>(base) + index * int64_t{sizeof(T)}, &value, sizeof(T));
}

// A 16-bit float with `mantissa_bits` stored bits and the given exponent range, straight from the
// double: one rounding.
uint16_t encode16(double value, int mantissa_bits, int min_exponent, int max_exponent) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const uint16_t inf = static_cast<uint16_t>((max_exponent - min_exponent + 2) << mantissa_bits);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | inf | 1u << (mantissa_bits - 1));
  const double magnitude = std::fabs(value);
  if (std::isinf(value)) return static_cast<uint16_t>(sign | inf);
  if (magnitude == 0) return sign;
  int exponent = std::ilogb(magnitude);
  if (exponent < min_exponent) exponent = min_exponent;
  // In units of the last place; nearbyint rounds ties to even. A carry moves into the exponent.
  const double units = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
  const int64_t code = (static_cast<int64_t>(exponent - min_exponent) << mantissa_bits) +
                       static_cast<int64_t>(units);
  return static_cast<uint16_t>(sign | (code >= inf ? inf : code));
}

double decode_f16(uint16_t code) {
  const int exponent = code >> 10 & 31, mantissa = code & 1023;
  double value = exponent == 0    ? std::ldexp(mantissa, -24)
                 : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                  : std::ldexp(1024 + mantissa, exponent - 25);
  return code & 0x8000 ? -value : value;
}

}  // namespace

double load(runmax_dtype dtype, const void* base, int64_t index) {
  switch (dtype) {
    case RUNMAX_F32:
      return read<float>(base, index);
    case RUNMAX_F64:
      return read<double>(base, index);
    case RUNMAX_BF16:
      return std::bit_cast<float>(uint32_t{read<uint16_t>(base, index)} << 16);
    case RUNMAX_F16:
      return decode_f16(read<uint16_t>(base, index));
    case RUNMAX_I32:
      return read<int32_t>(base, index);
    case RUNMAX_BOOL:
      return read<uint8_t>(base, index);
    default:
      return NAN;
  }
}

void store(runmax_dtype dtype, void* base, int64_t index, double value) {
  switch (dtype) {
    case RUNMAX_F32:
      write(base, index, static_cast<float>(value));
      break;
    case RUNMAX_F64:
      write(base, index, value);
      break;
    case RUNMAX_BF16:
      write(base, index, encode16(value, 7, -126, 127));
      break;
    case RUNMAX_F16:
      write(base, index, encode16(value, 10, -14, 15));
      break;
    case RUNMAX_I32:
      write(base, index, static_cast<int32_t>(value));
      break;
    case RUNMAX_BOOL:
      write(base, index, static_cast<uint8_t>(value));
      break;
    default:
      break;
  }
}

double rounded(runmax_dtype dtype, double value) {
  uint64_t scratch = 0;
  store(dtype, &scratch, 0, value);
  return load(dtype, &scratch, 0);
}

}  // namespace runmax::testing
