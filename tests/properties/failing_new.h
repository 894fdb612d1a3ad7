// operator new that fails on request, for every allocation of the executable and of the library
// linked into it. Aligned and nothrow forms included; counts what lives.
#pragma once

#include <cstdint>

namespace runmax::testing {

// While one is alive, the allocation number `n` (from 0) of this thread fails, and all after it.
class FailFrom {
 public:
  explicit FailFrom(int64_t n);
  ~FailFrom();
  FailFrom(const FailFrom&) = delete;
  FailFrom& operator=(const FailFrom&) = delete;
  bool failed() const;  // was that allocation reached?
};

// Allocations of this thread since it started, and those of the process that were not freed yet.
int64_t allocations();
int64_t living_allocations();

}  // namespace runmax::testing
