// The workspace ledger: kernels book named parts at plan time, one total is asked of the caller,
// and execution takes the parts back by the same name. Size query and use are the same code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "runmax/runmax.h"

namespace runmax {

class Workspace {
 public:
  struct Part {
    const char* name;  // static string
    size_t offset;
    size_t bytes;
  };

  // Every part starts at a multiple of RUNMAX_WORKSPACE_ALIGNMENT.
  void book(const char* name, size_t bytes) {
    parts_.push_back({name, size_, bytes});
    size_ += round_up(bytes);
  }

  size_t size() const { return size_; }
  const std::vector<Part>& parts() const { return parts_; }

  // nullptr for a part that was not booked or has no bytes.
  template <class T = std::byte>
  T* take(std::byte* base, const char* name) const {
    for (const Part& part : parts_) {
      if (std::strcmp(part.name, name) == 0) {
        return part.bytes == 0 ? nullptr : reinterpret_cast<T*>(base + part.offset);
      }
    }
    return nullptr;
  }

  // Product of sizes. What no machine has stays a number that no allocation can meet.
  static size_t bytes(std::initializer_list<int64_t> sizes) {
    constexpr size_t kTooMany = SIZE_MAX / 16;
    size_t product = 1;
    for (int64_t size : sizes) {
      if (size == 0) return 0;
      const size_t factor = static_cast<size_t>(size);
      product = product > kTooMany / factor ? kTooMany : product * factor;
    }
    return product;
  }

  static size_t round_up(size_t bytes) {
    constexpr size_t kMask = RUNMAX_WORKSPACE_ALIGNMENT - 1;
    return (bytes + kMask) & ~kMask;
  }

 private:
  std::vector<Part> parts_;
  size_t size_ = 0;
};

}  // namespace runmax
