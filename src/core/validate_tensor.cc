#include <charconv>
#include <cstring>

#include "core/tensor.h"
#include "core/validate.h"

namespace runmax {
namespace {

Status invalid(const char* name, const char* member, const std::string& rule) {
  return Status::invalid(std::string(name) + "." + member, rule);
}

Status check_dtype(const char* name, int32_t dtype) {
  if (dtype_size(dtype) > 0) return Status::ok();
  const std::string field = std::string(name) + ".dtype";
  if (std::strcmp(dtype_name(dtype), "?") == 0) {
    return Status::invalid(field, "is " + std::to_string(dtype) + ", must be a runmax_dtype");
  }
  return Status::unsupported(field, std::string("is ") + dtype_name(dtype) +
                                        ", which is reserved, must be F32, F64, BF16, F16, I32 "
                                        "or BOOL in this release");
}

Status check_alignment(const char* name, const runmax_tensor& tensor) {
  const int64_t alignment = tensor.min_alignment;
  if (alignment == 0) return Status::ok();
  const int64_t size = dtype_size(tensor.dtype);
  if (alignment > 0 && (alignment & (alignment - 1)) == 0 && alignment % size == 0) {
    return Status::ok();
  }
  return invalid(name, "min_alignment",
                 "is " + std::to_string(alignment) +
                     ", must be 0 or a power of two that is a multiple of the element size (" +
                     std::to_string(size) + ")");
}

Status check_dims(const char* name, const runmax_tensor& tensor) {
  int64_t count = 1;  // a dimension of 0 counts as 1: no partial product may overflow either
  for (int32_t i = 0; i < tensor.rank; ++i) {
    const int64_t dim = tensor.shape[i];
    if (dim < 0 || dim > kMaxLength) {
      return Status::invalid(shape_field(name, i),
                             "is " + std::to_string(dim) + ", must be in [0, 2^40]");
    }
    if (dim > 1 && count > kMaxCount / dim) {
      return invalid(name, "shape", "has too many elements, must have at most 2^62");
    }
    if (dim > 1) count *= dim;
  }
  return Status::ok();
}

Status check_strides(const char* name, const runmax_tensor& tensor, bool output) {
  if (element_count(tensor) == 0) return Status::ok();
  const int64_t size = dtype_size(tensor.dtype);
  int64_t extent = size;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] < 2) continue;  // its stride is never used
    const int64_t stride = tensor.stride[i];
    const auto field = [&] { return std::string(name) + ".stride[" + std::to_string(i) + "]"; };
    if (output && stride == 0) {
      return Status::invalid(
          field(), "is 0, must not be 0 for an output with " + shape_field(name, i) + " > 1");
    }
    const int64_t room = (kMaxExtent - extent) / size / (tensor.shape[i] - 1);
    if (stride > room || stride < -room) {
      return Status::invalid(
          field(), "is " + std::to_string(stride) + ", must keep the tensor within 2^60 bytes");
    }
    extent += (stride < 0 ? -stride : stride) * (tensor.shape[i] - 1) * size;
  }
  if (output && overlaps_itself(tensor)) {
    return invalid(name, "stride",
                   "puts two elements in one place, must give each element of an output its own");
  }
  return Status::ok();
}

}  // namespace

Status check_tensor(const char* name, const runmax_tensor& tensor, bool output) {
  if (tensor.dtype == RUNMAX_DTYPE_NONE) {
    constexpr runmax_tensor kAbsent{};
    if (std::memcmp(&tensor, &kAbsent, sizeof tensor) == 0) return Status::ok();
    return invalid(name, "dtype",
                   "is 0 (absent) beside fields that are set, must be a runmax_dtype, or the whole "
                   "tensor zero");
  }
  RUNMAX_RETURN_IF_ERROR(check_dtype(name, tensor.dtype));
  if (tensor.rank < 1 || tensor.rank > RUNMAX_MAX_RANK) {
    return invalid(name, "rank", "is " + std::to_string(tensor.rank) + ", must be in [1, 6]");
  }
  if (tensor.storage == RUNMAX_STORAGE_PAGED) {
    return Status::unsupported(std::string(name) + ".storage",
                               "is RUNMAX_STORAGE_PAGED, which is reserved, must be "
                               "RUNMAX_STORAGE_DENSE in this release");
  }
  if (tensor.storage != RUNMAX_STORAGE_DENSE) {
    return invalid(name, "storage",
                   "is " + std::to_string(tensor.storage) + ", must be RUNMAX_STORAGE_DENSE (0)");
  }
  for (int i = 0; i < 2; ++i) {
    if (tensor.reserved[i] == 0) continue;
    return Status::invalid(std::string(name) + ".reserved[" + std::to_string(i) + "]",
                           "is " + std::to_string(tensor.reserved[i]) + ", must be 0");
  }
  RUNMAX_RETURN_IF_ERROR(check_alignment(name, tensor));
  RUNMAX_RETURN_IF_ERROR(check_dims(name, tensor));
  return check_strides(name, tensor, output);
}

std::string to_text(double value) {
  char buffer[32];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, result.ptr);
}

}  // namespace runmax
