// Facts about one operand description.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/status.h"
#include "runmax/runmax.h"

namespace runmax {

// Bytes of one element; 0 for codes that are unknown or absent.
int64_t dtype_size(runmax_dtype dtype);
// "F32", "BF16", ...; "?" for unknown codes.
const char* dtype_name(runmax_dtype dtype);

int64_t element_count(const runmax_tensor& tensor);

// Contiguous, row-major.
runmax_tensor make_tensor(runmax_dtype dtype, std::initializer_list<int64_t> shape);

// Byte range [begin, end) that the elements cover, relative to the pointer (begin <= 0 with
// negative strides). Empty tensors: {0, 0}. Call only on tensors whose extent validate() has
// checked.
struct ByteExtent {
  int64_t begin;
  int64_t end;
};
ByteExtent byte_extent(const runmax_tensor& tensor);

// Do two tensors at these addresses share a byte of an element? Exact for interleaved strides.
bool share_elements(const runmax_tensor& a, const void* a_pointer, const runmax_tensor& b,
                    const void* b_pointer);
// Do two different indices of one tensor name the same element?
bool overlaps_itself(const runmax_tensor& tensor);

}  // namespace runmax
