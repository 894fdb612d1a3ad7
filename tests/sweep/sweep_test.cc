// Kernels x problems x instruction sets: the list by hand, and families generated from tile sizes,
// head dims and options.
#include "tests/sweep/sweep.h"

#include <gtest/gtest.h>

#include "tests/sweep/problems.h"

namespace runmax::testing {
namespace {

TEST(Sweep, problems_by_hand) {
  Sweep sweep(/*every_level=*/true);
  for (const std::string& text : problems_by_hand()) sweep.run(text);
  sweep.finish();
}

// Lengths of zero, one, and one less and more than each kernel's tiles.
TEST(Sweep, tile_boundaries) {
  Sweep sweep(/*every_level=*/false);
  for (const std::string& dtype : kTypes) {
    std::set<int64_t> q_lens = {0, 1}, kv_lens = {0, 1};
    for (const Kernel& kernel : kernels_here()) {
      if (kernel.op != RUNMAX_FORWARD) continue;
      const std::string whole = "q_len=4096 head_dim=16 dtype=" + dtype + " kernel=" + kernel.name;
      if (!takes(whole)) continue;
      const runmax_plan_info info = plan_info(whole);
      ASSERT_GT(info.q_tile, 0);
      ASSERT_GT(info.kv_tile, 0);
      for (int64_t slip : {-1, 0, 1}) {
        q_lens.insert(info.q_tile + slip);
        kv_lens.insert(info.kv_tile + slip);
        kv_lens.insert(2 * info.kv_tile + slip);
      }
    }
    for (int64_t q_len : q_lens) {
      for (int64_t kv_len : kv_lens) {
        for (const char* more : {"", "causal", "causal window=20,0 num_splits=2"}) {
          sweep.run("dtype=" + dtype + " q_heads=2 kv_heads=1 q_len=" + str(q_len) +
                        " kv_len=" + str(kv_len) + " head_dim=16 lse_lo " + more,
                    "tile boundaries " + dtype);
        }
      }
    }
  }
  sweep.finish();
}

TEST(Sweep, head_dims) {
  Sweep sweep(/*every_level=*/false);
  const int64_t dims[][2] = {{1, 1},     {2, 2},     {3, 3},    {5, 5},   {7, 9},     {8, 8},
                             {15, 17},   {16, 16},   {31, 33},  {32, 32}, {63, 63},   {64, 64},
                             {65, 1},    {80, 80},   {1, 65},   {96, 96}, {112, 112}, {128, 128},
                             {192, 128}, {257, 257}, {256, 512}};
  for (const std::string& dtype : kTypes) {
    for (const auto& [head_dim, head_dim_v] : dims) {
      for (const char* more : {"", "causal layout=bshd", "layout=strided num_splits=2"}) {
        sweep.run("dtype=" + dtype + " q_heads=4 kv_heads=2 q_len=19 kv_len=97 head_dim=" +
                      str(head_dim) + " head_dim_v=" + str(head_dim_v) + " " + more,
                  "head dims " + dtype);
      }
    }
  }
  sweep.finish();
}

TEST(Sweep, every_pair_of_options) {
  Sweep sweep(/*every_level=*/false);
  const std::vector<std::string> all = pairs_of_options(plan_info("q_len=4096 head_dim=11"));
  EXPECT_GT(all.size(), 1000u);
  for (const std::string& text : all) sweep.run(text);
  sweep.finish();
}

TEST(Sweep, random_problems) {
  Sweep sweep(/*every_level=*/false);
  for (uint64_t seed = 1; seed <= 300; ++seed) sweep.run(random_problem(seed));
  sweep.finish();
}

TEST(Sweep, merges) {
  Sweep sweep(/*every_level=*/true);
  for (const std::string& dtype : kTypes) {
    for (int64_t partials : {0, 1, 2, 3, 17}) {
      for (const char* shape :
           {"q_len=3", "batch=2 q_heads=3 q_len=40 layout=bshd", "batch=2 q_len=0",
            "packed batch=3 q_heads=2 q_len=20 layout=padded", "q_len=9 poison=inf no_lse"}) {
        for (const char* dims : {"head_dim=1", "head_dim=64", "head_dim=37"}) {
          sweep.run("direction=merge dtype=" + dtype + " partials=" + str(partials) + " " + shape +
                    " " + dims);
        }
      }
    }
  }
  sweep.finish(RUNMAX_MERGE);
}

// The family rule on ordinary data, where its elements are many.
TEST(Sweep, twice_the_error_of_the_plain_computation) {
  Sweep sweep(/*every_level=*/true);
  for (const std::string& dtype : kTypes) {
    for (const char* text :
         {"q_heads=4 kv_heads=2 q_len=128 kv_len=1024 head_dim=64 causal",
          "q_heads=2 q_len=200 head_dim=128", "q_heads=2 q_len=32 kv_len=3000 head_dim=32",
          "q_heads=2 q_len=100 kv_len=500 head_dim=80 softcap=20 alibi sink causal",
          "q_heads=2 q_len=64 kv_len=700 head_dim=64 bias num_splits=3"}) {
      sweep.run("dtype=" + dtype + " " + text, "ordinary data " + dtype);
    }
  }
  sweep.finish();
}

}  // namespace
}  // namespace runmax::testing
