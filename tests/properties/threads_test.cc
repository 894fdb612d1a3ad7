// One device and its plans, used by many threads at once, by a forked child, and through a
// caller's parallel_for: the same bits.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "testing/case.h"
#include "testing/run.h"

namespace runmax::testing {
namespace {

struct DeviceDeleter {
  void operator()(runmax_device* device) const { runmax_device_destroy(device); }
};
struct PlanDeleter {
  void operator()(runmax_plan* plan) const { runmax_plan_destroy(plan); }
};
using DevicePointer = std::unique_ptr<runmax_device, DeviceDeleter>;
using PlanPointer = std::unique_ptr<runmax_plan, PlanDeleter>;

DevicePointer make_device(int32_t threads, runmax_parallel_for parallel_for = nullptr,
                          void* self = nullptr) {
  runmax_device_options options{};
  options.struct_size = sizeof options;
  options.max_threads = threads;
  options.parallel_for = parallel_for;
  options.parallel_for_self = self;
  runmax_device* device = nullptr;
  EXPECT_EQ(runmax_device_create(&options, &device), RUNMAX_OK) << runmax_last_error();
  return DevicePointer(device);
}

PlanPointer make_plan(const runmax_problem& problem, runmax_device* device) {
  runmax_plan* plan = nullptr;
  return PlanPointer(runmax_plan_create(&problem, device, &plan) == RUNMAX_OK ? plan : nullptr);
}

// Executes a plan into outputs and a workspace of its own. False if the library refused.
bool run_plan(const runmax_plan* plan, OutputCopy& outputs) {
  const size_t bytes = runmax_plan_workspace_size(plan);
  std::vector<std::byte> workspace(bytes + RUNMAX_WORKSPACE_ALIGNMENT);
  void* start = workspace.data();
  size_t room = workspace.size();
  std::align(RUNMAX_WORKSPACE_ALIGNMENT, bytes, start, room);
  return runmax_execute(plan, &outputs.args, start, bytes, nullptr) == RUNMAX_OK;
}

const std::vector<std::string> kProblems = {
    "batch=2 q_heads=4 kv_heads=2 q_len=90 kv_len=130 head_dim=16 causal sink lse_lo",
    "q_heads=2 q_len=3 kv_len=900 head_dim=16 num_splits=4 dtype=bf16",
    "batch=3 q_heads=2 q_len=70 kv_len=90 head_dim=8 packed causal mask=11qk dropout=0.2 seed=5",
    "batch=2 q_heads=2 q_len=65 kv_len=129 head_dim=8 block_size=16,16 block_heads=q dtype=f16",
};

struct Shared {
  std::unique_ptr<Case> data;
  PlanPointer plan;
  std::unique_ptr<OutputCopy> right;
};

// Plans of every problem on one device, and what they compute on one thread of a device of its own.
std::vector<Shared> shared_plans(runmax_device* device) {
  const DevicePointer alone = make_device(1);
  std::vector<Shared> all;
  for (const std::string& text : kProblems) {
    Shared s;
    s.data = std::make_unique<Case>(text);
    s.right = std::make_unique<OutputCopy>(s.data->problem(), s.data->args());
    const PlanPointer plan = make_plan(s.right->problem, alone.get());
    EXPECT_TRUE(plan != nullptr && run_plan(plan.get(), *s.right)) << runmax_last_error();
    s.plan = make_plan(s.right->problem, device);
    EXPECT_NE(s.plan, nullptr) << runmax_last_error();
    all.push_back(std::move(s));
  }
  return all;
}

bool same_bits(const Shared& s, const runmax_plan* plan) {
  OutputCopy outputs(s.data->problem(), s.data->args());
  return run_plan(plan, outputs) && outputs.same_bits(*s.right);
}

TEST(Threads, sixteen_plan_and_execute_on_one_device) {
  const DevicePointer device = make_device(4);
  const std::vector<Shared> shared = shared_plans(device.get());
  std::atomic<int> wrong{0}, runs{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 4; ++round) {
        const Shared& s = shared[static_cast<size_t>(t + round) % shared.size()];
        if (runmax_plan_explain(s.plan.get())[0] == '\0') ++wrong;
        if (!same_bits(s, s.plan.get())) ++wrong;
        const PlanPointer own = make_plan(s.right->problem, device.get());
        if (own == nullptr || !same_bits(s, own.get())) ++wrong;
        // Every thread has its own last error.
        runmax_problem bad = s.right->problem;
        bad.softcap = -1 - t;
        runmax_plan* none = nullptr;
        if (runmax_plan_create(&bad, device.get(), &none) != RUNMAX_INVALID_ARGUMENT ||
            std::string(runmax_last_error()).find(std::to_string(-1 - t)) == std::string::npos) {
          ++wrong;
        }
        runs += 2;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(runs, 16 * 4 * 2);
}

TEST(Threads, sixteen_create_and_destroy_devices) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  const Case c("q_heads=3 q_len=70 kv_len=70 head_dim=8");
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 4; ++round) {
        const DevicePointer device = make_device(3);
        OutputCopy outputs(c.problem(), c.args());
        const PlanPointer plan = make_plan(outputs.problem, device.get());
        if (plan == nullptr || !run_plan(plan.get(), outputs)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

#if !defined(__SANITIZE_THREAD__)  // tsan cannot follow threads that start after a fork
TEST(Threads, plans_survive_a_fork) {
  const DevicePointer device = make_device(3);
  const std::vector<Shared> shared = shared_plans(device.get());
  for (const Shared& s : shared) EXPECT_TRUE(same_bits(s, s.plan.get()));
  std::fflush(stdout);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool good = true;
    for (const Shared& s : shared) {
      good &= same_bits(s, s.plan.get());
      const PlanPointer own = make_plan(s.right->problem, device.get());
      good &= own != nullptr && same_bits(s, own.get());
    }
    _exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  for (const Shared& s : shared) EXPECT_TRUE(same_bits(s, s.plan.get()));
}
#endif

// ------------------------------------------------------------------------- the caller's own loop

struct Calls {
  std::atomic<int64_t> tasks{0};
};

void serial(void* self, int64_t tasks, runmax_task task, void* context) {
  for (int64_t i = 0; i < tasks; ++i) task(context, i, 0);
  static_cast<Calls*>(self)->tasks += tasks;
}

void reversed(void* self, int64_t tasks, runmax_task task, void* context) {
  for (int64_t i = tasks; i-- > 0;) task(context, i, static_cast<int32_t>(i % 5));
  static_cast<Calls*>(self)->tasks += tasks;
}

// Threads of the caller; slots in no particular order.
void concurrent(void* self, int64_t tasks, runmax_task task, void* context) {
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;
  for (const int32_t slot : {4, 0, 3, 1, 2}) {
    threads.emplace_back([&, slot] {
      for (int64_t i = next++; i < tasks; i = next++) task(context, i, slot);
    });
  }
  for (std::thread& thread : threads) thread.join();
  static_cast<Calls*>(self)->tasks += tasks;
}

TEST(Threads, any_parallel_for_gives_the_same_bits) {
  for (const runmax_parallel_for loop : {serial, reversed, concurrent}) {
    Calls calls;
    const DevicePointer device = make_device(5, loop, &calls);
    for (const Shared& s : shared_plans(device.get())) {
      EXPECT_TRUE(same_bits(s, s.plan.get())) << to_string(s.data->spec());
    }
    EXPECT_GT(calls.tasks, 0);
  }
}

}  // namespace
}  // namespace runmax::testing
