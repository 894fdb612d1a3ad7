// Gradients: kernels x problems x instruction sets, against the gradient oracle.
#include <gtest/gtest.h>

#include "testing/problem_string.h"
#include "tests/sweep/problems.h"
#include "tests/sweep/sweep.h"

namespace runmax::testing {
namespace {

// Gradients need lse; "" for a problem that gives none, or that is not forward.
std::string backward(const std::string& text) {
  const ParsedProblem parsed = parse_problem("direction=backward " + text);
  return parsed.ok() ? "direction=backward " + text : "";
}

void run_all(Sweep& sweep, const std::vector<std::string>& problems,
             const std::string& family = "") {
  for (const std::string& text : problems) {
    if (const std::string words = backward(text); !words.empty()) sweep.run(words, family);
  }
}

TEST(BackwardSweep, problems_by_hand) {
  Sweep sweep(/*every_level=*/true);
  run_all(sweep, problems_by_hand());
  sweep.finish(RUNMAX_BACKWARD);
}

// With lse_lo, so that weights are as good as plain's. Lengths of zero, one, and one less and more
// than each kernel's tiles.
TEST(BackwardSweep, tile_boundaries) {
  Sweep sweep(/*every_level=*/false);
  for (const std::string& dtype : kTypes) {
    std::set<int64_t> q_lens = {0, 1}, kv_lens = {0, 1};
    for (const Kernel& kernel : kernels_here()) {
      if (kernel.op != RUNMAX_BACKWARD) continue;
      const std::string whole =
          "direction=backward q_len=4096 head_dim=16 dtype=" + dtype + " kernel=" + kernel.name;
      if (!takes(whole)) continue;
      const runmax_plan_info info = plan_info(whole);
      ASSERT_GT(info.q_tile, 0);
      ASSERT_GT(info.kv_tile, 0);
      for (int64_t slip : {-1, 0, 1}) {
        q_lens.insert(info.q_tile + slip);
        q_lens.insert(2 * info.q_tile + slip);
        kv_lens.insert(info.kv_tile + slip);
        kv_lens.insert(2 * info.kv_tile + slip);
      }
    }
    std::vector<std::string> all;
    for (int64_t q_len : q_lens) {
      for (int64_t kv_len : kv_lens) {
        for (const char* more : {"lse_lo", "causal lse_lo", "causal window=20,0 lse_lo"}) {
          all.push_back("dtype=" + dtype + " q_heads=2 kv_heads=1 q_len=" + str(q_len) +
                        " kv_len=" + str(kv_len) + " head_dim=16 " + more);
        }
      }
    }
    run_all(sweep, all, "tile boundaries " + dtype);
  }
  sweep.finish(RUNMAX_BACKWARD);
}

TEST(BackwardSweep, head_dims) {
  Sweep sweep(/*every_level=*/false);
  const int64_t dims[][2] = {{1, 1},   {2, 2},     {3, 3},     {5, 5},     {7, 9},    {8, 8},
                             {15, 17}, {31, 33},   {64, 64},   {65, 1},    {1, 65},   {80, 80},
                             {96, 96}, {128, 128}, {192, 128}, {257, 257}, {256, 512}};
  for (const std::string& dtype : kTypes) {
    std::vector<std::string> all;
    for (const auto& [head_dim, head_dim_v] : dims) {
      for (const char* more : {"lse_lo", "lse_lo causal layout=bshd", "lse_lo layout=strided"}) {
        // The narrowest heads have the largest scores and few elements: several draws, so that a
        // family's largest error is not one element's luck.
        for (int seed = 1; seed <= (head_dim == 1 ? 8 : 1); ++seed) {
          all.push_back("dtype=" + dtype +
                        " q_heads=4 kv_heads=2 q_len=19 kv_len=97 head_dim=" + str(head_dim) +
                        " head_dim_v=" + str(head_dim_v) + " " + more + " data_seed=" + str(seed));
        }
      }
    }
    run_all(sweep, all, "head dims " + dtype);
  }
  sweep.finish(RUNMAX_BACKWARD);
}

TEST(BackwardSweep, every_pair_of_options) {
  Sweep sweep(/*every_level=*/false);
  std::vector<std::string> all;
  for (const std::string& text :
       pairs_of_options(plan_info("direction=backward q_len=4096 head_dim=11"))) {
    if (!backward(text).empty()) all.push_back(text);
  }
  EXPECT_GT(all.size(), 1000u);
  run_all(sweep, all);
  sweep.finish(RUNMAX_BACKWARD);
}

// Each gradient alone, and each upstream gradient alone.
TEST(BackwardSweep, what_is_asked_for) {
  Sweep sweep(/*every_level=*/false);
  for (const std::string& dtype : kTypes) {
    for (const char* ask :
         {"gradients=d_q", "gradients=d_k", "gradients=d_v", "gradients=d_bias", "gradients=d_sink",
          "gradients=d_alibi_slopes", "gradients=d_q,d_bias", "gradients=d_k,d_v", "upstream=d_out",
          "upstream=d_lse", "upstream=d_lse gradients=d_v", "upstream=d_lse gradients=d_sink"}) {
      for (const char* bias : {"bhqk", "1h1k", "11qk", "b1q1", "1111"}) {
        sweep.run(
            "direction=backward batch=2 q_heads=4 kv_heads=2 q_len=40 kv_len=150 head_dim=12 "
            "causal softcap=4 alibi=bh sink bias=" +
            std::string(bias) + " dtype=" + dtype + " " + ask);
      }
    }
  }
  sweep.finish(RUNMAX_BACKWARD);
}

TEST(BackwardSweep, random_problems) {
  Sweep sweep(/*every_level=*/false);
  for (uint64_t seed = 1; seed <= 200; ++seed) run_all(sweep, {random_problem(seed)});
  sweep.finish(RUNMAX_BACKWARD);
}

TEST(BackwardSweep, merges) {
  Sweep sweep(/*every_level=*/true);
  for (const std::string& dtype : kTypes) {
    for (int64_t partials : {1, 2, 3, 17}) {
      for (const char* shape :
           {"q_len=3", "batch=2 q_heads=3 q_len=40 layout=bshd", "batch=2 q_len=0",
            "packed batch=3 q_heads=2 q_len=20 layout=padded", "q_len=9 poison=inf",
            "q_len=9 upstream=d_out", "q_len=9 upstream=d_lse gradients=d_partial_lse"}) {
        for (const char* dims : {"head_dim=1", "head_dim=64", "head_dim=37"}) {
          sweep.run("direction=merge_backward dtype=" + dtype + " partials=" + str(partials) + " " +
                    shape + " " + dims);
        }
      }
    }
  }
  sweep.finish(RUNMAX_MERGE);
}

// The family rule on ordinary data, where its elements are many.
TEST(BackwardSweep, twice_the_error_of_the_plain_computation) {
  Sweep sweep(/*every_level=*/true);
  for (const std::string& dtype : kTypes) {
    for (const char* text :
         {"q_heads=4 kv_heads=2 q_len=128 kv_len=512 head_dim=64 causal",
          "q_heads=2 q_len=200 head_dim=128", "q_heads=2 q_len=32 kv_len=2000 head_dim=32",
          "q_heads=2 q_len=1000 kv_len=40 head_dim=32",
          "q_heads=2 q_len=100 kv_len=400 head_dim=80 softcap=20 alibi sink causal",
          "q_heads=2 q_len=64 kv_len=500 head_dim=64 bias"}) {
      run_all(sweep, {"lse_lo dtype=" + dtype + " " + text}, "ordinary data " + dtype);
    }
  }
  sweep.finish(RUNMAX_BACKWARD);
}

}  // namespace
}  // namespace runmax::testing
