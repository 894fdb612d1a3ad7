// Kernels x problems x instruction sets: the list by hand, and families generated from tile sizes,
// head dims and options.
#include "tests/sweep/sweep.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "testing/element.h"

namespace runmax::testing {
namespace {

const std::vector<std::string> kTypes = {"f32", "f64", "bf16", "f16"};

std::string str(int64_t value) { return std::to_string(value); }

std::vector<std::string> lines_of(const std::string& name) {
  const char* elsewhere = std::getenv("RUNMAX_SWEEP_LISTS");  // binaries that were moved
  std::ifstream file(std::string(elsewhere != nullptr ? elsewhere : RUNMAX_SWEEP_LISTS) + "/" +
                     name);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  }
  return lines;
}

TEST(Sweep, problems_by_hand) {
  const std::vector<std::string> lines = lines_of("problems.txt");
  ASSERT_GT(lines.size(), 30u);
  Sweep sweep(/*every_level=*/true);
  for (const std::string& line : lines) {
    if ((" " + line).find(" dtype=") != std::string::npos) {
      sweep.run(line);
      continue;
    }
    for (const std::string& dtype : kTypes) sweep.run("dtype=" + dtype + " " + line);
  }
  sweep.finish();
}

// Lengths of zero, one, and one less and more than each kernel's tiles.
TEST(Sweep, tile_boundaries) {
  Sweep sweep(/*every_level=*/false);
  for (const std::string& dtype : kTypes) {
    std::set<int64_t> q_lens = {0, 1}, kv_lens = {0, 1};
    for (const Kernel& kernel : kernels_here()) {
      if (kernel.op != RUNMAX_FORWARD) continue;
      const runmax_plan_info info =
          plan_info("q_len=4096 head_dim=16 dtype=" + dtype + " kernel=" + kernel.name);
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

// "" where the two cannot be said in one problem.
std::string joined(const std::string& base, const std::string& a, const std::string& b) {
  for (const std::string& text : {base + " " + a + " " + b, base + " " + b + " " + a}) {
    if (parse_problem(text).ok()) return text;
  }
  return "";
}

TEST(Sweep, every_pair_of_options) {
  const std::vector<std::string> options = lines_of("options.txt");
  ASSERT_GT(options.size(), 40u);
  Sweep sweep(/*every_level=*/false);
  // A whole tile and a part of one, both ways.
  const runmax_plan_info tiles = plan_info("q_len=4096 head_dim=11");
  const std::string q_len = "q_len=" + str(tiles.q_tile + 5);
  const std::string kv_len = "kv_len=" + str(tiles.kv_tile + 12);
  int64_t number = 0;
  for (size_t a = 0; a < options.size(); ++a) {
    for (size_t b = a; b < options.size(); ++b) {
      const std::string& second = a == b ? std::string() : options[b];
      std::string base = "batch=2 q_heads=4 head_dim=11 data_seed=" + str(number);
      for (const std::string& word : {std::string("kv_heads=2"), q_len, kv_len}) {
        const std::string key = word.substr(0, word.find('='));
        if (options[a].find(key) == 0 || second.find(key) == 0) continue;
        base += " " + word;
      }
      std::string text = joined(base, options[a], second);
      if (text.empty()) continue;
      // f64 has no out in f32.
      const bool narrow_out = text.find("out_dtype") != std::string::npos;
      std::string dtype = kTypes[static_cast<size_t>(number++ % 4)];
      if (narrow_out && dtype == "f64") dtype = "bf16";
      sweep.run("dtype=" + dtype + " " + text);
    }
  }
  EXPECT_GT(number, 1000);
  sweep.finish();
}

// Everything drawn at random, within what the problem string can say.
std::string random_problem(uint64_t seed) {
  uint64_t counter = 0;
  const auto below = [&](int64_t bound) { return random_below(seed, counter++, bound); };
  const auto pick = [&](const std::vector<std::string>& words) {
    return words[static_cast<size_t>(below(static_cast<int64_t>(words.size())))];
  };
  const int64_t kv_heads = 1 + below(3), group = 1 + below(3);
  const std::string dtype = pick(kTypes);
  std::string text = "dtype=" + dtype + " batch=" + str(1 + below(3)) +
                     " q_heads=" + str(kv_heads * group) + " kv_heads=" + str(kv_heads) +
                     " q_len=" + str(below(220)) + " kv_len=" + str(below(420)) +
                     " head_dim=" + str(1 + below(40)) + " head_dim_v=" + str(1 + below(40)) +
                     " data_seed=" + str(below(1000));
  const auto maybe = [&](int64_t one_in, const std::vector<std::string>& words) {
    if (below(one_in) == 0) text += " " + pick(words);
  };
  maybe(2, {"causal"});
  maybe(4, {"align=top_left", "diagonal_offset"});
  maybe(3, {"window=10,0", "window=0,0", "window=30,30", "window=-1,5", "window=64,-1"});
  maybe(4, {"sink_tokens=1", "sink_tokens=70"});
  maybe(4, {"scale=-0.5", "scale=0", "scale=2", "scale=1e-6"});
  maybe(5, {"softcap=1", "softcap=30"});
  maybe(5, {"alibi", "alibi=bh"});
  maybe(4, {"bias", "bias=1hqk", "bias=b11k", "bias=11q1", "bias=1111"});
  maybe(4, {"mask", "mask=b1qk", "mask=111k"});
  maybe(4, {"sink"});
  maybe(4, {"packed", "packed layout=strided", "layout=bshd", "layout=negative", "layout=bhds"});
  maybe(4, {"seqused_q"});
  maybe(3, {"seqused_kv"});
  maybe(6, {"prefix_len"});
  maybe(6, {"segments=1", "segments=5"});
  maybe(6, {"block_size=16,16", "block_size=3,50 block_heads=kv", "block_size=128,128"});
  maybe(6, {"dropout=0.5 seed=7", "dropout=1"});
  maybe(3, {"num_splits=2", "num_splits=3", "num_splits=100"});
  maybe(3, {"lse_lo"});
  maybe(6, {"keep_unused"});
  maybe(6, {"batch_invariant"});
  maybe(4, {"poison_hidden"});
  maybe(3, {"poison=inf", "poison=1e30", "poison=zero"});
  maybe(2, {"fill=hostile", "fill=nonfinite", "fill=huge", "fill=onehot", "fill=counting"});
  return text;
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
  sweep.finish(/*expect_merge=*/true);
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
