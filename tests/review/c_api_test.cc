// Requests that once went wrong inside of the C interface, or were taken without a word.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "testing/case.h"
#include "testing/run.h"

namespace runmax::testing {
namespace {

struct PlanDeleter {
  void operator()(runmax_plan* plan) const { runmax_plan_destroy(plan); }
};
using Plan = std::unique_ptr<runmax_plan, PlanDeleter>;

Plan plan_of(const runmax_problem& problem) {
  runmax_plan* plan = nullptr;
  EXPECT_EQ(runmax_plan_create(&problem, cpu_device(), &plan), RUNMAX_OK) << runmax_last_error();
  return Plan(plan);
}

struct alignas(RUNMAX_WORKSPACE_ALIGNMENT) Line {
  std::byte bytes[RUNMAX_WORKSPACE_ALIGNMENT];
};

// A plan with room for it to run.
struct Ready {
  explicit Ready(const runmax_problem& problem)
      : plan(plan_of(problem)),
        size(runmax_plan_workspace_size(plan.get())),
        workspace(size / sizeof(Line) + 1) {}

  runmax_status execute(const runmax_args& args, void* stream = nullptr) {
    return runmax_execute(plan.get(), &args, workspace.data(), size, stream);
  }

  Plan plan;
  size_t size;
  std::vector<Line> workspace;
};

runmax_tensor shaped(runmax_dtype dtype, std::vector<int64_t> shape) {
  runmax_tensor tensor{};
  EXPECT_EQ(runmax_tensor_init(&tensor, dtype, static_cast<int32_t>(shape.size()), shape.data()),
            RUNMAX_OK);
  return tensor;
}

// Lists of selected blocks: room for every block of rows, also when the lists are empty.
TEST(BlockIndex, WithoutEntriesStillNeedsOneListPerBlockOfRows) {
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{1, 0, 4}, {1, 3, 0}, {1, 63, 0}, {1, 64, 0}}) {
    Case c("packed q_len=64 kv_len=64 cu_seqlens_q=0,64 cu_seqlens_kv=0,64 head_dim=8");
    c.problem().block_index = shaped(RUNMAX_I32, shape);
    c.problem().block_q = 1;
    c.problem().block_kv = 1;
    Ready ready(c.problem());
    const runmax_status status = ready.execute(c.args());
    if (shape[1] >= 64) {
      ASSERT_EQ(status, RUNMAX_OK) << runmax_last_error();
      for (const double x : c.values("out")) ASSERT_EQ(x, 0);
      continue;
    }
    EXPECT_EQ(status, RUNMAX_INVALID_ARGUMENT);
    EXPECT_STREQ(runmax_last_error_field(), "block_index.shape[1]");
    EXPECT_EQ(c.unwritten("out"), static_cast<int64_t>(c.values("out").size()));
  }
}

// 2^62 entries, all of them one: the bytes for their sorted copy do not fit in 64 bits.
TEST(BlockIndex, WorkspaceOfAHugeBroadcastListDoesNotWrapRound) {
  Case c("packed q_len=1 kv_len=1 cu_seqlens_q=0,0 cu_seqlens_kv=0,0 head_dim=8");
  runmax_tensor& blocks = c.problem().block_index;
  blocks = shaped(RUNMAX_I32, {1, int64_t{1} << 22, int64_t{1} << 40});
  for (int64_t& stride : blocks.stride) stride = 0;
  c.problem().block_q = 1;
  c.problem().block_kv = 1;
  const Plan plan = plan_of(c.problem());
  EXPECT_GE(runmax_plan_workspace_size(plan.get()), size_t{1} << 60);
}

TEST(Execute, RefusesAWorkspaceThatIsAnOperand) {
  Case c("q_len=300 kv_len=300 head_dim=64");
  Ready ready(c.problem());
  for (const bool output : {true, false}) {
    runmax_args args = c.args();
    void* inside = ready.workspace.data() + 1;
    if (output) {
      args.out = inside;
    } else {
      args.k = inside;
    }
    EXPECT_EQ(ready.execute(args), RUNMAX_INVALID_ARGUMENT);
    EXPECT_STREQ(runmax_last_error_field(), "workspace");
    EXPECT_NE(std::string(runmax_last_error()).find(output ? "out" : "k"), std::string::npos);
  }
  EXPECT_EQ(ready.execute(c.args()), RUNMAX_OK) << runmax_last_error();
}

// One kept weight of 4000 makes out 2.5e35; the value times 1 / (1 - p) alone is beyond F32.
TEST(Dropout, OfNearlyEverythingStaysInRange) {
  int kept = 0;
  for (int seed = 0; seed < 1000; ++seed) {
    Case c("q_len=1 kv_len=4000 head_dim=4 scale=0 dropout=0.999999 seed=" + std::to_string(seed));
    c.fill("q", 1);
    c.fill("k", 1);
    c.fill("v", 1e33);
    Ready ready(c.problem());
    ASSERT_EQ(ready.execute(c.args()), RUNMAX_OK) << runmax_last_error();
    for (const double x : c.values("out")) {
      const double weights = x / 2.5e35;
      ASSERT_NEAR(weights, std::round(weights), 1e-5 * weights) << seed;
      kept += x > 0;
    }
  }
  EXPECT_GT(kept, 0);
}

TEST(Execute, RefusesAStreamOnTheCpu) {
  Case c("q_len=3 kv_len=5 head_dim=8");
  Ready ready(c.problem());
  int something = 0;
  EXPECT_EQ(ready.execute(c.args(), &something), RUNMAX_INVALID_ARGUMENT);
  EXPECT_STREQ(runmax_last_error_field(), "stream");
  EXPECT_EQ(runmax_check_args(ready.plan.get(), &c.args(), &something), RUNMAX_INVALID_ARGUMENT);
  EXPECT_STREQ(runmax_last_error_field(), "stream");

  Case parts("direction=merge partials=2 q_len=3 head_dim=8");
  EXPECT_EQ(runmax_merge(cpu_device(), &parts.problem(), &parts.args(), &something),
            RUNMAX_INVALID_ARGUMENT);
  EXPECT_STREQ(runmax_last_error_field(), "stream");
  EXPECT_EQ(runmax_merge(cpu_device(), &parts.problem(), &parts.args(), nullptr), RUNMAX_OK);
}

TEST(Message, IsOneLineWhateverTheKernelIsCalled) {
  Case c("q_len=3 kv_len=5 head_dim=8");
  for (const char* name : {"no\nsuch", "two words", "bell\a", "\x80"}) {
    c.problem().kernel = name;
    EXPECT_EQ(runmax_supports(&c.problem(), cpu_device()), RUNMAX_INVALID_ARGUMENT);
    EXPECT_STREQ(runmax_last_error_field(), "kernel");
    EXPECT_EQ(std::string(runmax_last_error()).find('\n'), std::string::npos);
  }
}

TEST(Message, NamesBothRanksOfAlibiSlopes) {
  Case c("q_len=3 kv_len=5 head_dim=8");
  c.problem().alibi_slopes = shaped(RUNMAX_F32, {1, 1, 1});
  EXPECT_EQ(runmax_validate(&c.problem()), RUNMAX_INVALID_ARGUMENT);
  EXPECT_STREQ(runmax_last_error(),
               "alibi_slopes.rank: is 3, must be 1 [q_heads] or 2 [batch, q_heads]");
}

// A caller of a later release reads zero, not what its stack held, where this one has no field.
TEST(Results, AreZeroBeyondWhatThisReleaseKnows) {
  struct {
    runmax_device_info info;
    unsigned char tail[64];
  } longer;
  std::memset(&longer, 0xff, sizeof longer);
  longer.info.struct_size = sizeof longer;
  ASSERT_EQ(runmax_device_get_info(cpu_device(), &longer.info), RUNMAX_OK);
  EXPECT_EQ(longer.info.struct_size, sizeof longer);
  for (const unsigned char byte : longer.tail) EXPECT_EQ(byte, 0);
}

TEST(Results, RefuseAStructSizeThatNobodySet) {
  runmax_device_info info;
  std::memset(&info, 0xff, sizeof info);
  EXPECT_EQ(runmax_device_get_info(cpu_device(), &info), RUNMAX_INVALID_ARGUMENT);
  EXPECT_STREQ(runmax_last_error_field(), "struct_size");
}

}  // namespace
}  // namespace runmax::testing
