#include "core/tensor.h"

namespace runmax {

int64_t dtype_size(runmax_dtype dtype) {
  switch (dtype) {
    case RUNMAX_F64:
      return 8;
    case RUNMAX_F32:
    case RUNMAX_I32:
      return 4;
    case RUNMAX_BF16:
    case RUNMAX_F16:
      return 2;
    case RUNMAX_BOOL:
      return 1;
    default:
      return 0;
  }
}

const char* dtype_name(runmax_dtype dtype) {
  switch (dtype) {
    case RUNMAX_DTYPE_NONE:
      return "NONE";
    case RUNMAX_F32:
      return "F32";
    case RUNMAX_F64:
      return "F64";
    case RUNMAX_BF16:
      return "BF16";
    case RUNMAX_F16:
      return "F16";
    case RUNMAX_I32:
      return "I32";
    case RUNMAX_BOOL:
      return "BOOL";
    case RUNMAX_F8_E4M3:
      return "F8_E4M3";
    case RUNMAX_F8_E5M2:
      return "F8_E5M2";
    case RUNMAX_I8:
      return "I8";
    case RUNMAX_I4:
      return "I4";
    default:
      return "?";
  }
}

int64_t element_count(const runmax_tensor& tensor) {
  if (tensor.dtype == RUNMAX_DTYPE_NONE) return 0;
  int64_t count = 1;
  for (int32_t i = 0; i < tensor.rank; ++i) count *= tensor.shape[i];
  return count;
}

runmax_tensor make_tensor(runmax_dtype dtype, std::initializer_list<int64_t> shape) {
  runmax_tensor tensor{};
  tensor.dtype = dtype;
  for (int64_t dim : shape) {
    assert(tensor.rank < RUNMAX_MAX_RANK);
    tensor.shape[tensor.rank++] = dim;
  }
  int64_t stride = 1;
  for (int32_t i = tensor.rank - 1; i >= 0; --i) {
    tensor.stride[i] = stride;
    stride *= tensor.shape[i];
  }
  return tensor;
}

ByteExtent byte_extent(const runmax_tensor& tensor) {
  if (element_count(tensor) == 0) return {0, 0};
  const int64_t size = dtype_size(tensor.dtype);
  ByteExtent extent{0, size};
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] < 2) continue;  // its stride is never used
    const int64_t reach = (tensor.shape[i] - 1) * tensor.stride[i] * size;
    (reach < 0 ? extent.begin : extent.end) += reach;
  }
  return extent;
}

}  // namespace runmax
