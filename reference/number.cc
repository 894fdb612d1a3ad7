#include "reference/number.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace runmax::reference {
namespace {

int64_t bytes_of(runmax_dtype dtype) {
  switch (dtype) {
    case RUNMAX_F64:
      return 8;
    case RUNMAX_F32:
    case RUNMAX_I32:
      return 4;
    case RUNMAX_BF16:
    case RUNMAX_F16:
      return 2;
    default:
      return 1;
  }
}

// A 16-bit format: 1 sign bit, `exponent_bits`, the rest fraction.
double decode(uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int exponent = (bits & 0x7fff) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double value;
  if (exponent == (1 << exponent_bits) - 1) {
    value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                          : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, 1 - bias - fraction_bits);
  } else {
    value = std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

// `value` is a number of the format already.
uint16_t encode(double value, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const int top = (1 << exponent_bits) - 1;
  int magnitude;
  if (std::isnan(value)) {
    magnitude = (top << fraction_bits) | (1 << (fraction_bits - 1));
  } else if (std::isinf(value)) {
    magnitude = top << fraction_bits;
  } else if (std::fabs(value) < std::ldexp(1, 1 - bias)) {
    magnitude = static_cast<int>(std::ldexp(std::fabs(value), bias - 1 + fraction_bits));
  } else {
    const int exponent = std::ilogb(value);
    const int significand =
        static_cast<int>(std::ldexp(std::fabs(value), fraction_bits - exponent));
    magnitude = ((exponent + bias - 1) << fraction_bits) + significand;
  }
  return static_cast<uint16_t>(sign | magnitude);
}

}  // namespace

Format format(runmax_dtype dtype) {
  switch (dtype) {
    case RUNMAX_F64:
      return {53, -1022, std::numeric_limits<double>::max(), 0x1p-1074};
    case RUNMAX_BF16:
      return {8, -126, 0x1.fep127, 0x1p-133};
    case RUNMAX_F16:
      return {11, -14, 65504, 0x1p-24};
    default:
      return {24, -126, std::numeric_limits<float>::max(), 0x1p-149};
  }
}

double round_to(runmax_dtype dtype, double value) {
  if (dtype == RUNMAX_F64 || value == 0 || !std::isfinite(value)) return value;
  const Format type = format(dtype);
  const int exponent = std::max(std::ilogb(value), type.min_exponent) - (type.precision - 1);
  // Scaling by a power of two is exact, so that nearbyint rounds the value itself.
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent);
  if (std::fabs(rounded) > type.max_finite) {
    return std::copysign(std::numeric_limits<double>::infinity(), value);
  }
  return rounded;
}

double load(runmax_dtype dtype, const void* data, int64_t index) {
  const auto* at = static_cast<const unsigned char*>(data) + index * bytes_of(dtype);
  switch (dtype) {
    case RUNMAX_F64: {
      double value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    case RUNMAX_F32: {
      float value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    case RUNMAX_I32: {
      int32_t value;
      std::memcpy(&value, at, sizeof value);
      return value;
    }
    case RUNMAX_BF16:
    case RUNMAX_F16: {
      uint16_t bits;
      std::memcpy(&bits, at, sizeof bits);
      return decode(bits, dtype == RUNMAX_BF16 ? 8 : 5);
    }
    default:  // BOOL: any non-zero byte is true
      return *at != 0;
  }
}

void store(runmax_dtype dtype, void* data, int64_t index, double value) {
  auto* at = static_cast<unsigned char*>(data) + index * bytes_of(dtype);
  switch (dtype) {
    case RUNMAX_F64:
      std::memcpy(at, &value, sizeof value);
      break;
    case RUNMAX_F32: {
      const float rounded = static_cast<float>(value);
      std::memcpy(at, &rounded, sizeof rounded);
      break;
    }
    default: {
      const uint16_t bits = encode(round_to(dtype, value), dtype == RUNMAX_BF16 ? 8 : 5);
      std::memcpy(at, &bits, sizeof bits);
    }
  }
}

int64_t element_count(const runmax_tensor& tensor) {
  int64_t count = tensor.rank > 0 ? 1 : 0;
  for (int d = 0; d < tensor.rank; ++d) count *= tensor.shape[d];
  return count;
}

int64_t element_offset(const runmax_tensor& tensor, int64_t number) {
  int64_t offset = 0;
  for (int d = tensor.rank - 1; d >= 0; --d) {
    offset += number % tensor.shape[d] * tensor.stride[d];
    number /= tensor.shape[d];
  }
  return offset;
}

}  // namespace runmax::reference
