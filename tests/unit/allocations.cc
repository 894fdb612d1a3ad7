#include "tests/unit/allocations.h"

#include <cstdlib>
#include <new>

namespace {
thread_local int64_t count = 0;
}  // namespace

namespace runmax::testing {
int64_t allocations() { return count; }
}  // namespace runmax::testing

void* operator new(size_t bytes) {
  ++count;
  if (void* pointer = std::malloc(bytes == 0 ? 1 : bytes)) return pointer;
  throw std::bad_alloc();
}
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, size_t) noexcept { std::free(pointer); }
