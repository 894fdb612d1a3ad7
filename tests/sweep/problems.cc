#include "tests/sweep/problems.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "testing/element.h"
#include "testing/problem_string.h"

namespace runmax::testing {
namespace {

std::vector<std::string> lines_of(const std::string& name) {
  const char* elsewhere = std::getenv("RUNMAX_SWEEP_LISTS");  // binaries that were moved
  std::ifstream file(std::string(elsewhere != nullptr ? elsewhere : RUNMAX_SWEEP_LISTS) + "/" +
                     name);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  }
  EXPECT_GT(lines.size(), 30u) << name;
  return lines;
}

// "" where the two cannot be said in one problem.
std::string joined(const std::string& base, const std::string& a, const std::string& b) {
  for (const std::string& text : {base + " " + a + " " + b, base + " " + b + " " + a}) {
    if (parse_problem(text).ok()) return text;
  }
  return "";
}

}  // namespace

std::vector<std::string> problems_by_hand() {
  std::vector<std::string> all;
  for (const std::string& line : lines_of("problems.txt")) {
    if ((" " + line).find(" dtype=") != std::string::npos) {
      all.push_back(line);
      continue;
    }
    for (const std::string& dtype : kTypes) all.push_back("dtype=" + dtype + " " + line);
  }
  return all;
}

std::vector<std::string> pairs_of_options(const runmax_plan_info& tiles, const std::string& words) {
  const std::string q_len = "q_len=" + str(tiles.q_tile + 5);
  const std::string kv_len = "kv_len=" + str(tiles.kv_tile + 12);
  const std::vector<std::string> options = lines_of("options.txt");
  std::vector<std::string> all;
  for (size_t a = 0; a < options.size(); ++a) {
    for (size_t b = a; b < options.size(); ++b) {
      const std::string& second = a == b ? std::string() : options[b];
      std::string base =
          words + "batch=2 q_heads=4 head_dim=11 data_seed=" + std::to_string(all.size());
      for (const std::string& word : {std::string("kv_heads=2"), q_len, kv_len}) {
        const std::string key = word.substr(0, word.find('='));
        if (options[a].find(key) == 0 || second.find(key) == 0) continue;
        base += " " + word;
      }
      const std::string text = joined(base, options[a], second);
      if (text.empty()) continue;
      // f64 has no out in f32.
      const bool narrow_out = text.find("out_dtype") != std::string::npos;
      std::string dtype = kTypes[all.size() % 4];
      if (narrow_out && dtype == "f64") dtype = "bf16";
      all.push_back("dtype=" + dtype + " " + text);
    }
  }
  return all;
}

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
    if (below(one_in) == 0) (text += " ") += pick(words);
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

}  // namespace runmax::testing
