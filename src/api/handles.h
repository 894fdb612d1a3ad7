// The opaque types of runmax.h, and how structs cross the boundary.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "core/abi.h"
#include "core/status.h"
#include "device/device.h"
#include "plan/plan.h"

struct runmax_device {
  std::unique_ptr<runmax::Device> implementation;
};

struct runmax_plan {
  runmax::Plan implementation;
};

namespace runmax::api {

inline Status require(const void* pointer, const char* name) {
  if (pointer != nullptr) return Status::ok();
  return Status::invalid(name, "is NULL, must point to an object");
}

// Hands a struct of results to a caller whose idea of it may be shorter or longer; what a longer
// one has beyond this library's is zero.
template <class T>
Status export_struct(T& result, uint32_t first_size, T* caller) {
  RUNMAX_RETURN_IF_ERROR(require(caller, "info"));
  const uint32_t size = caller->struct_size;
  if (size < first_size || size > kMaxStructSize) {
    return Status::invalid("struct_size", "is " + std::to_string(size) + ", must be sizeof (" +
                                              std::to_string(sizeof(T)) + ")");
  }
  result.struct_size = size;
  std::memcpy(static_cast<void*>(caller), &result, std::min<size_t>(size, sizeof(T)));
  if (size > sizeof(T)) {
    std::memset(reinterpret_cast<std::byte*>(caller) + sizeof(T), 0, size - sizeof(T));
  }
  return Status::ok();
}

}  // namespace runmax::api
