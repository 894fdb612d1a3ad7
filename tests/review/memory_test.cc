// Out of memory at every allocation of every call: an answer, never an abort; the same call works
// once there is memory.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <string_view>

#include "testing/case.h"
#include "testing/run.h"

namespace {
// How many more allocations of this thread succeed; negative = all.
thread_local int64_t left = -1;
thread_local bool starved = false;

// Once memory is out it stays out.
bool granted() {
  if (left == 0) starved = true;
  if (left > 0) --left;
  return !(left == 0 && starved);
}
}  // namespace

void* operator new(size_t bytes) {
  if (!granted()) throw std::bad_alloc();
  if (void* pointer = std::malloc(bytes == 0 ? 1 : bytes)) return pointer;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  if (!granted()) return nullptr;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, size_t) noexcept { std::free(pointer); }

namespace runmax::testing {
namespace {

// Fails the first allocation, then the second, ... until the call needs no more. Returns how many
// it made.
int starve(runmax_status expected, const std::function<runmax_status()>& call) {
  for (int n = 0; n < 10000; ++n) {
    starved = false;
    left = n;
    const runmax_status status = call();
    left = -1;
    if (!starved) {
      EXPECT_EQ(status, expected) << runmax_last_error();
      return n;
    }
    // What only helps to choose, such as a file of the system, may be done without.
    EXPECT_TRUE(status == RUNMAX_OUT_OF_MEMORY || status == expected)
        << "allocation " << n << ": " << runmax_last_error();
    if (status == RUNMAX_OUT_OF_MEMORY) {
      EXPECT_STREQ(runmax_last_error_field(), "memory");
    }
  }
  ADD_FAILURE() << "never had enough";
  return 0;
}

TEST(OutOfMemory, DeviceCalls) {
  bool made_iff_ok = true;
  EXPECT_GT(starve(RUNMAX_OK,
                   [&] {
                     runmax_device* device = nullptr;
                     const runmax_status status = runmax_device_create(nullptr, &device);
                     made_iff_ok &= (device != nullptr) == (status == RUNMAX_OK);
                     runmax_device_destroy(device);
                     return status;
                   }),
            0);
  EXPECT_TRUE(made_iff_ok);
  EXPECT_GT(starve(RUNMAX_OK,
                   [] {
                     int32_t count = -1;
                     return runmax_device_count(RUNMAX_DEVICE_CUDA, &count);
                   }),
            0);
  EXPECT_GT(starve(RUNMAX_DEVICE_ERROR,
                   [] {
                     runmax_device_options options{};
                     options.struct_size = sizeof options;
                     options.kind = RUNMAX_DEVICE_CUDA;
                     runmax_device* device = nullptr;
                     return runmax_device_create(&options, &device);
                   }),
            0);
}

TEST(OutOfMemory, PlanCalls) {
  bool made_iff_ok = true;
  runmax_device* device = cpu_device(3);
  Case c("packed batch=3 q_len=40 kv_len=50 head_dim=8 q_heads=2 bias=11qk block_size=8,8");
  const std::string kernel = "forward_generic";
  c.problem().kernel = kernel.c_str();
  EXPECT_GT(starve(RUNMAX_OK, [&] { return runmax_supports(&c.problem(), device); }), 0);
  EXPECT_GT(starve(RUNMAX_OK,
                   [&] {
                     runmax_plan* plan = nullptr;
                     const runmax_status status = runmax_plan_create(&c.problem(), device, &plan);
                     made_iff_ok &= (plan != nullptr) == (status == RUNMAX_OK);
                     runmax_plan_destroy(plan);
                     return status;
                   }),
            0);

  EXPECT_TRUE(made_iff_ok);

  runmax_plan* plan = nullptr;
  ASSERT_EQ(runmax_plan_create(&c.problem(), device, &plan), RUNMAX_OK);
  EXPECT_GT(starve(RUNMAX_OK,
                   [&] {
                     const std::string_view text = runmax_plan_explain(plan);
                     return text.empty() ? RUNMAX_OUT_OF_MEMORY : RUNMAX_OK;
                   }),
            0);
  runmax_plan_info info{};
  info.struct_size = sizeof info;
  EXPECT_GT(starve(RUNMAX_OK, [&] { return runmax_plan_get_info(plan, &info); }), 0);
  EXPECT_GT(starve(RUNMAX_OK, [&] { return runmax_plan_count(plan, &c.args(), &info); }), 0);

  runmax_args args = c.args();
  args.q = nullptr;
  EXPECT_GT(
      starve(RUNMAX_INVALID_ARGUMENT, [&] { return runmax_check_args(plan, &args, nullptr); }), 0);
  void* workspace = nullptr;
  const size_t size = runmax_plan_workspace_size(plan);
  ASSERT_EQ(runmax_device_alloc(device, size, &workspace), RUNMAX_OK);
  // The first call starts the pool's threads; no call takes memory from operator new.
  EXPECT_EQ(
      starve(RUNMAX_OK, [&] { return runmax_execute(plan, &c.args(), workspace, size, nullptr); }),
      0);
  EXPECT_EQ(runmax_device_free(device, workspace), RUNMAX_OK);
  runmax_plan_destroy(plan);
}

TEST(OutOfMemory, Merge) {
  runmax_device* device = cpu_device();
  Case parts("direction=merge partials=3 q_len=40 head_dim=8");
  starve(RUNMAX_OK, [&] { return runmax_merge(device, &parts.problem(), &parts.args(), nullptr); });
}

TEST(OutOfMemory, Refusals) {
  runmax_device* device = cpu_device();
  Case c("q_len=3 kv_len=5 head_dim=8");
  c.problem().softcap = -1e-300;
  EXPECT_GT(starve(RUNMAX_INVALID_ARGUMENT, [&] { return runmax_validate(&c.problem()); }), 0);
  c.problem().softcap = 0;
  c.problem().kernel = "no_such_kernel";
  EXPECT_GT(starve(RUNMAX_INVALID_ARGUMENT, [&] { return runmax_supports(&c.problem(), device); }),
            0);
}

}  // namespace
}  // namespace runmax::testing
