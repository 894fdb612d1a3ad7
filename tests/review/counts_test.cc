// What explain counts in closed form, against the visibility rule pair by pair; and at sizes where
// counting pair by pair, or in 64 bits, would not end well.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "testing/case.h"
#include "testing/run.h"

namespace runmax::testing {
namespace {

runmax_plan_info counted(const std::string& words) {
  const ProblemSpec spec = problem(words);
  const runmax_problem described = make_problem(spec);
  runmax_plan* plan = nullptr;
  EXPECT_EQ(runmax_plan_create(&described, cpu_device(), &plan), RUNMAX_OK) << runmax_last_error();
  runmax_plan_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(runmax_plan_get_info(plan, &info), RUNMAX_OK) << runmax_last_error();
  runmax_plan_destroy(plan);
  return info;
}

// docs/numerics.md, without what is data.
bool sees(const ProblemSpec& s, int64_t i, int64_t j) {
  const int64_t off = s.align == RUNMAX_ALIGN_TOP_LEFT ? 0 : s.kv_len - s.q_len;
  const bool left = s.window_left < 0 || j >= i + off - s.window_left || j < s.sink_tokens;
  bool right = s.window_right < 0 || j <= i + off + s.window_right;
  if (s.causal) right = right && j <= i + off;
  return left && right;
}

TEST(Counts, AgreeWithTheRulePairByPair) {
  int problems = 0;
  for (const int64_t q_len : {1, 7, 96, 97, 300}) {
    for (const int64_t kv_len : {1, 5, 128, 129, 500}) {
      for (const char* window : {"", "causal", "window=0,0", "window=3,-1", "window=-1,40",
                                 "causal window=130,-1", "window=1,200"}) {
        for (const char* rest : {"", "sink_tokens=1", "sink_tokens=140", "align=top_left",
                                 "align=top_left sink_tokens=3"}) {
          const std::string words = "batch=3 q_heads=4 kv_heads=2 head_dim=8 head_dim_v=3 q_len=" +
                                    std::to_string(q_len) + " kv_len=" + std::to_string(kv_len) +
                                    " " + window + " " + rest;
          SCOPED_TRACE(words);
          const ProblemSpec s = problem(words);
          const runmax_plan_info info = counted(words);
          uint64_t visible = 0;
          uint64_t executed = 0;
          for (int64_t row = 0; row < q_len; row += info.q_tile) {
            for (int64_t key = 0; key < kv_len; key += info.kv_tile) {
              uint64_t pairs = 0;
              const int64_t rows = std::min<int64_t>(info.q_tile, q_len - row);
              const int64_t keys = std::min<int64_t>(info.kv_tile, kv_len - key);
              for (int64_t i = row; i < row + rows; ++i) {
                for (int64_t j = key; j < key + keys; ++j) pairs += sees(s, i, j);
              }
              visible += pairs;
              if (pairs > 0) executed += static_cast<uint64_t>(rows * info.kv_tile);
            }
          }
          ASSERT_EQ(info.visible_pairs, 3 * 4 * visible);
          ASSERT_EQ(info.executed_tiled, 3 * 4 * executed * 2 * (8 + 3));
          ++problems;
        }
      }
    }
  }
  EXPECT_EQ(problems, 5 * 5 * 7 * 5);
}

TEST(Counts, OfGiantProblemsTakeNoTime) {
  const uint64_t n = 200'000'003;
  const runmax_plan_info one = counted("causal head_dim=8 q_len=" + std::to_string(n));
  EXPECT_EQ(one.visible_pairs, n * (n + 1) / 2);
  const runmax_plan_info long_keys = counted("head_dim=8 q_len=1 kv_len=1099511627776");
  EXPECT_EQ(long_keys.visible_pairs, uint64_t{1} << 40);
  const runmax_plan_info many = counted("head_dim=8 q_len=1 kv_len=9 batch=1099511627776");
  EXPECT_EQ(many.visible_pairs, uint64_t{9} << 40);
}

TEST(Counts, StopAtTheLargestNumber) {
  const runmax_plan_info info = counted("head_dim=1024 q_len=1048576 kv_len=1099511627776");
  EXPECT_EQ(info.visible_pairs, uint64_t{1} << 60);
  EXPECT_EQ(info.required_operations, UINT64_MAX);
  EXPECT_EQ(info.executed_plain, UINT64_MAX);
  EXPECT_EQ(info.executed_tiled, UINT64_MAX);
  EXPECT_EQ(info.extra_memory_plain, uint64_t{1} << 62);
  EXPECT_EQ(info.slow_bytes_plain, UINT64_MAX);
}

}  // namespace
}  // namespace runmax::testing
