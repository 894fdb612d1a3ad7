// Memory ends at the n-th allocation of a call, for every n: the call says so, leaves nothing
// behind, and succeeds once there is memory again.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "testing/case.h"
#include "testing/run.h"
#include "tests/properties/failing_new.h"

// AddressSanitizer ends a program that asks for too much, unless told to answer like malloc.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace runmax::testing {
namespace {

// `call` is made with ever more allocations granted, until it needs no more. It answers `answer`
// then, RUNMAX_OUT_OF_MEMORY before. `undo` frees what a call that went well has made.
void expect_survives(
    const char* what, runmax_status answer, const std::function<runmax_status()>& call,
    const std::function<void()>& undo = [] {}) {
  SCOPED_TRACE(what);
  int64_t n = 0;
  for (bool done = false; !done; ++n) {
    ASSERT_LT(n, 10'000);
    const int64_t living = living_allocations();
    runmax_status status;
    {
      const FailFrom failing(n);
      status = call();
      done = !failing.failed();
    }
    // A call may do without what it did not get, but not give another answer.
    ASSERT_TRUE(status == answer || (!done && status == RUNMAX_OUT_OF_MEMORY))
        << n << ": " << runmax_status_name(status) << ", " << runmax_last_error();
    if (status == RUNMAX_OUT_OF_MEMORY) {
      ASSERT_STREQ(runmax_last_error(), "memory: an allocation failed, more free memory is needed");
    }
    if (status == RUNMAX_OK) undo();
    ASSERT_EQ(living_allocations(), living) << "after failing from allocation " << n;
  }
  std::printf("%s: %lld allocations\n", what, static_cast<long long>(n - 1));
}

struct Handles {
  runmax_device* device = nullptr;
  runmax_plan* plan = nullptr;

  explicit Handles(const runmax_problem& problem, int32_t threads = 2) {
    runmax_device_options options{};
    options.struct_size = sizeof options;
    options.max_threads = threads;
    EXPECT_EQ(runmax_device_create(&options, &device), RUNMAX_OK) << runmax_last_error();
    EXPECT_EQ(runmax_plan_create(&problem, device, &plan), RUNMAX_OK) << runmax_last_error();
  }
  ~Handles() {
    runmax_plan_destroy(plan);
    runmax_device_destroy(device);
  }
};

std::string first_forward_kernel() {
  for (int32_t i = 0; i < runmax_kernel_count(); ++i) {
    runmax_kernel_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(runmax_kernel_get(i, &info), RUNMAX_OK);
    if (info.op == RUNMAX_FORWARD && info.required_isa == RUNMAX_ISA_BASELINE) return info.name;
  }
  ADD_FAILURE() << "no forward kernel";
  return "";
}

ProblemSpec forward_problem() {
  ProblemSpec spec = problem(
      "batch=2 q_heads=4 kv_heads=2 q_len=70 kv_len=900 head_dim=24 packed causal sink bias=1hqk "
      "alibi lse_lo block_size=16,32 num_splits=3 dropout=0.1 seed=3");
  spec.kernel = first_forward_kernel();  // a name is a string to copy
  return spec;
}

TEST(OutOfMemory, device_create) {
  runmax_device* device = nullptr;
  expect_survives(
      "runmax_device_create", RUNMAX_OK, [&] { return runmax_device_create(nullptr, &device); },
      [&] {
        EXPECT_NE(device, nullptr);
        runmax_device_destroy(device);
        device = nullptr;
      });
  const Handles handles{Case("q_len=3").problem()};
  expect_survives("runmax_device_get_info", RUNMAX_OK, [&] {
    runmax_device_info info{};
    info.struct_size = sizeof info;
    return runmax_device_get_info(handles.device, &info);
  });
  // The first call looks for the CUDA backend, however often memory fails it, and keeps the answer.
  int32_t count = -1;
  const auto count_gpus = [&] { return runmax_device_count(RUNMAX_DEVICE_CUDA, &count); };
  runmax_status status = RUNMAX_OUT_OF_MEMORY;
  for (int64_t n = 0; status != RUNMAX_OK; ++n) {
    const FailFrom failing(n);
    status = count_gpus();
    ASSERT_TRUE(status == RUNMAX_OK || status == RUNMAX_OUT_OF_MEMORY) << n;
  }
  EXPECT_GE(count, 0);
  expect_survives("runmax_device_count", RUNMAX_OK, count_gpus);
}

TEST(OutOfMemory, memory_that_no_machine_has) {
  const Handles handles{Case("q_len=3").problem()};
  void* pointer = &pointer;
  EXPECT_EQ(runmax_device_alloc(handles.device, SIZE_MAX / 2, &pointer), RUNMAX_OUT_OF_MEMORY);
  EXPECT_EQ(pointer, nullptr);
  EXPECT_STREQ(runmax_last_error_field(), "bytes");
}

TEST(OutOfMemory, validate_and_plan) {
  const Case c(forward_problem());
  const Handles handles(c.problem());
  runmax_plan* plan = nullptr;
  expect_survives("runmax_validate", RUNMAX_OK, [&] { return runmax_validate(&c.problem()); });
  expect_survives("runmax_supports", RUNMAX_OK,
                  [&] { return runmax_supports(&c.problem(), handles.device); });
  expect_survives(
      "runmax_plan_create", RUNMAX_OK,
      [&] { return runmax_plan_create(&c.problem(), handles.device, &plan); },
      [&] {
        EXPECT_NE(plan, nullptr);
        runmax_plan_destroy(plan);
        plan = nullptr;
      });
  EXPECT_EQ(plan, nullptr);
}

TEST(OutOfMemory, refusals) {
  const Case c(forward_problem());
  const Handles handles(c.problem());
  runmax_problem bad = c.problem();
  bad.k.shape[2] += 1;
  expect_survives("an ill-formed problem", RUNMAX_INVALID_ARGUMENT,
                  [&] { return runmax_validate(&bad); });
  bad = c.problem();
  bad.kernel = "no such kernel";
  runmax_plan* plan = nullptr;
  expect_survives("an unknown kernel", RUNMAX_INVALID_ARGUMENT,
                  [&] { return runmax_plan_create(&bad, handles.device, &plan); });
  bad = c.problem();
  bad.page_table = bad.block_index;
  expect_survives("a reserved operand", RUNMAX_UNSUPPORTED, [&] { return runmax_validate(&bad); });
  runmax_args args = c.args();
  const int32_t starts[] = {0, -5, 3};
  args.cu_seqlens_q = starts;
  expect_survives("a bad index", RUNMAX_INVALID_ARGUMENT,
                  [&] { return runmax_check_args(handles.plan, &args, nullptr); });
  EXPECT_EQ(plan, nullptr);
}

TEST(OutOfMemory, explain_and_counts) {
  const Case c(forward_problem());
  // The text stays once it was made: a plan for each attempt.
  for (int64_t n = 0, done = 0; !done; ++n) {
    const Handles handles(c.problem());
    {
      const FailFrom failing(n);
      const char* text = runmax_plan_explain(handles.plan);
      done = !failing.failed();
      if (!done) {
        EXPECT_STREQ(text, "");
      }
    }
    if (!done) {
      EXPECT_STREQ(runmax_last_error_field(), "memory");
    }
    EXPECT_NE(std::strstr(runmax_plan_explain(handles.plan), "workspace"), nullptr);
  }
  const Handles handles(c.problem());
  runmax_plan_info info{};
  info.struct_size = sizeof info;
  expect_survives("runmax_plan_get_info", RUNMAX_OK,
                  [&] { return runmax_plan_get_info(handles.plan, &info); });
  expect_survives("runmax_plan_count", RUNMAX_OK,
                  [&] { return runmax_plan_count(handles.plan, &c.args(), &info); });
}

// Without one allocation, the first time too.
TEST(OutOfMemory, execute_needs_no_memory) {
  const Case c(forward_problem());
  for (const int32_t threads : {1, 2}) {
    const Handles handles(c.problem(), threads);
    const size_t bytes = runmax_plan_workspace_size(handles.plan);
    void* workspace = nullptr;
    ASSERT_EQ(runmax_device_alloc(handles.device, bytes, &workspace), RUNMAX_OK);
    const int64_t before = allocations();
    runmax_status status;
    {
      const FailFrom failing(0);
      status = runmax_execute(handles.plan, &c.args(), workspace, bytes, nullptr);
    }
    EXPECT_EQ(status, RUNMAX_OK) << runmax_last_error();
    EXPECT_EQ(allocations(), before);
    const Comparison result = compare_all(c.problem(), c.args(), expected(c.problem(), c.args()));
    EXPECT_TRUE(result.passed) << result.message;
    EXPECT_EQ(runmax_device_free(handles.device, workspace), RUNMAX_OK);
  }
}

TEST(OutOfMemory, merge) {
  const Case c("direction=merge partials=3 batch=2 q_heads=3 q_len=40 head_dim_v=20");
  const Handles handles{Case("q_len=3").problem()};
  expect_survives("runmax_merge", RUNMAX_OK,
                  [&] { return runmax_merge(handles.device, &c.problem(), &c.args(), nullptr); });
  const Comparison result = compare_all(c.problem(), c.args(), expected(c.problem(), c.args()));
  EXPECT_TRUE(result.passed) << result.message;
}

TEST(OutOfMemory, roofs) {
  const Handles handles{Case("q_len=3").problem()};
  // Half a second each: the first allocations only.
  for (int64_t n = 0; n < 2; ++n) {
    runmax_roofs roofs{};
    roofs.struct_size = sizeof roofs;
    const int64_t living = living_allocations();
    runmax_status status;
    {
      const FailFrom failing(n);
      status = runmax_measure_roofs(handles.device, &roofs);
      if (!failing.failed()) n = 2;
    }
    EXPECT_TRUE(status == RUNMAX_OK || status == RUNMAX_OUT_OF_MEMORY) << runmax_last_error();
    EXPECT_EQ(living_allocations(), living);
  }
}

}  // namespace
}  // namespace runmax::testing
