// Elements of tensors as numbers: the conversions of every floating type, written from the formats'
// definitions, and where an element lies.
#pragma once

#include <cstdint>

#include "runmax/runmax.h"

namespace runmax::reference {

// What a floating type can hold.
struct Format {
  int precision;     // significant bits
  int min_exponent;  // of the smallest normal number, as 2^min_exponent
  double max_finite;
  double tiny;  // the smallest subnormal number
};
Format format(runmax_dtype dtype);  // F32, F64, BF16, F16

// The nearest number of the type (ties to even; overflow to inf). Exact for F64.
double round_to(runmax_dtype dtype, double value);

// Element `index` (in elements, may be negative) of memory that holds the type.
double load(runmax_dtype dtype, const void* data, int64_t index);
// Rounds once.
void store(runmax_dtype dtype, void* data, int64_t index, double value);

int64_t element_count(const runmax_tensor& tensor);
// Offset in elements of the element with this row-major number, through the strides.
int64_t element_offset(const runmax_tensor& tensor, int64_t number);

}  // namespace runmax::reference
