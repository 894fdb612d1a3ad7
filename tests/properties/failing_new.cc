#include "tests/properties/failing_new.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

thread_local int64_t made = 0;
thread_local int64_t fail_from = INT64_MAX;
thread_local bool has_failed = false;
std::atomic<int64_t> living{0};

void* allocate(size_t bytes, size_t alignment) noexcept {
  if (made++ >= fail_from) {
    has_failed = true;
    return nullptr;
  }
  void* pointer = nullptr;
  if (posix_memalign(&pointer, alignment, bytes == 0 ? 1 : bytes) != 0) return nullptr;
  living.fetch_add(1, std::memory_order_relaxed);
  return pointer;
}

void* allocate_or_throw(size_t bytes, size_t alignment) {
  if (void* pointer = allocate(bytes, alignment)) return pointer;
  throw std::bad_alloc();
}

void release(void* pointer) noexcept {
  if (pointer == nullptr) return;
  living.fetch_sub(1, std::memory_order_relaxed);
  std::free(pointer);
}

constexpr size_t kDefault = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

namespace runmax::testing {

FailFrom::FailFrom(int64_t n) {
  has_failed = false;
  fail_from = made + n;
}
FailFrom::~FailFrom() { fail_from = INT64_MAX; }
bool FailFrom::failed() const { return has_failed; }
int64_t allocations() { return made; }
int64_t living_allocations() { return living; }

}  // namespace runmax::testing

void* operator new(size_t n) { return allocate_or_throw(n, kDefault); }
void* operator new[](size_t n) { return allocate_or_throw(n, kDefault); }
void* operator new(size_t n, std::align_val_t a) {
  return allocate_or_throw(n, static_cast<size_t>(a));
}
void* operator new[](size_t n, std::align_val_t a) {
  return allocate_or_throw(n, static_cast<size_t>(a));
}
void* operator new(size_t n, const std::nothrow_t&) noexcept { return allocate(n, kDefault); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return allocate(n, kDefault); }
void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, static_cast<size_t>(a));
}
void* operator new[](size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, static_cast<size_t>(a));
}
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, size_t) noexcept { release(p); }
void operator delete[](void* p, size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { release(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { release(p); }
