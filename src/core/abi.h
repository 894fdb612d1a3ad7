// The rule for structs that cross the C boundary: they only grow at their end, and a caller's may
// be older (shorter) or newer (longer) than this library's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/status.h"
#include "runmax/runmax.h"

namespace runmax {

// Sizes of the structs in their first release: what a caller's struct_size is at least.
inline constexpr uint32_t kFirstProblemSize = 4728;
inline constexpr uint32_t kFirstArgsSize = 328;
inline constexpr uint32_t kFirstDeviceOptionsSize = 40;
inline constexpr uint32_t kFirstDeviceInfoSize = 192;
inline constexpr uint32_t kFirstRoofsSize = 24;
inline constexpr uint32_t kFirstPlanInfoSize = 200;
inline constexpr uint32_t kFirstKernelInfoSize = 40;
inline constexpr uint32_t kFirstEnvironmentInfoSize = 32;

// Longer than any struct will be: a larger struct_size is garbage, not a future release.
inline constexpr uint32_t kMaxStructSize = 1 << 16;

// Copies a caller's struct into the current layout; fields that it lacks stay zero. Bytes that this
// library does not know must be zero, since they ask for something that it cannot give.
template <class T>
Status import_struct(const T& caller, uint32_t first_size, T& current) {
  const uint32_t size = caller.struct_size;
  if (size < first_size || size > kMaxStructSize) {
    return Status::invalid("struct_size", "is " + std::to_string(size) + ", must be sizeof (" +
                                              std::to_string(sizeof(T)) + ")");
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(&caller);
  for (uint32_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != std::byte{0}) {
      return Status::invalid("struct_size", "is " + std::to_string(size) + " with byte " +
                                                std::to_string(i) + " set, must be zero past the " +
                                                std::to_string(sizeof(T)) +
                                                " bytes that this release knows");
    }
  }
  current = T{};
  std::memcpy(&current, bytes, size < sizeof(T) ? size : sizeof(T));
  current.struct_size = sizeof(T);
  return Status::ok();
}

}  // namespace runmax
