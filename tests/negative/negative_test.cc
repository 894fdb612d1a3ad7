// Deliberately broken kernels must be caught by the gates, on inputs where the fault is of order
// one; the honest version of the same kernel must sit at half the gate or below on all of them.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "testing/gates.h"
#include "testing/run.h"
#include "tests/negative/tiled_softmax.h"

namespace runmax::negative {
namespace {

using testing::Case;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Trap {
  Fault fault;
  std::string problem;  // without dtype
  std::function<void(Case&)> edit = {};
  std::vector<std::string> dtypes = {"f32", "bf16", "f16"};
};

void PrintTo(const Trap& trap, std::ostream* out) { *out << name_of(trap.fault); }

// Half of every row's weight on one key, whose v is 8 and everyone else's 0.
std::function<void(Case&)> focus(int64_t key) {
  return [key](Case& c) {
    const runmax_problem& p = c.problem();
    const double others = static_cast<double>(std::max<int64_t>(1, p.k.shape[2] - 1));
    const double scale = 1 / std::sqrt(static_cast<double>(p.q.shape[3]));
    c.fill("k", [&](const int64_t* i) { return i[2] == key && i[3] == 0 ? 1.0 : 0.0; });
    c.fill("q", [&](const int64_t* i) { return i[3] == 0 ? std::log(others) / scale : 0.0; });
    c.fill("v", [&](const int64_t* i) { return i[2] == key ? 8.0 : 0.0; });
  };
}

std::string numbers(const std::string& text, int64_t kv_len) {
  return text + " kv_len=" + std::to_string(kv_len);
}

std::vector<Trap> traps() {
  std::vector<Trap> all;
  // Edges of masks, at the edges of tiles and far out.
  for (int64_t key : {0L, 5L, kTile - 1, kTile, kTile + 1, 2 * kTile, 1000L}) {
    // Row r looks from key + r - 4.
    const std::string causal = numbers("q_len=8 head_dim=8 causal", key + 4);
    all.push_back({Fault::kCausalOneMore, causal, focus(key)});
    all.push_back({Fault::kCausalOneLess, causal, focus(key)});
    // Row r looks from key + r, five keys back.
    const std::string window = numbers("q_len=16 head_dim=8 window=5,0", key + 16);
    all.push_back({Fault::kWindowOneMore, window, focus(key)});
    all.push_back({Fault::kWindowOneLess, window, focus(key)});
  }
  for (int64_t length : {1L, 2L, kTile - 1, kTile + 1, 2 * kTile - 1, 2 * kTile + 1, 1025L}) {
    const std::string text = numbers("q_len=2 head_dim=8", length);
    all.push_back({Fault::kDroppedTail, text, focus(length - 1)});
    if (length > 1) all.push_back({Fault::kLastKeyTwice, text, focus(length - 1)});
    if (length > kTile) all.push_back({Fault::kDroppedFirstTile, text, focus(0)});
  }
  all.push_back({Fault::kTopLeft, "q_len=8 kv_len=65 head_dim=8 causal"});
  all.push_back({Fault::kSinkTokensIgnored,
                 "q_len=4 kv_len=129 head_dim=8 window=5,0 sink_tokens=2", focus(1)});
  all.push_back({Fault::kWrongHead, "q_heads=6 kv_heads=2 q_len=3 kv_len=9 head_dim=8"});
  all.push_back({Fault::kReadsPastLength, "q_len=3 kv_len=9 head_dim=8 seqused_kv=4"});
  all.push_back({Fault::kReadsPastLength, "q_len=3 kv_len=9 head_dim=8 seqused_kv=4 poison=inf"});
  all.push_back({Fault::kReadsPastLength, "q_len=3 kv_len=9 head_dim=8 seqused_kv=4 poison=zero"});
  all.push_back(
      {Fault::kBiasHeadStride, "batch=2 q_heads=3 q_len=2 kv_len=4 head_dim=8 bias=b1qk"});
  all.push_back({Fault::kBiasIgnored, "q_len=4 kv_len=33 head_dim=8 bias"});

  const std::string growing = "q_len=4 kv_len=300 head_dim=16 fill=hostile";
  all.push_back({Fault::kOutNotRescaled, growing});
  all.push_back({Fault::kSumNotRescaled, growing});
  all.push_back({Fault::kMaxKeptPerTile, "q_len=4 kv_len=300 head_dim=16 fill=huge"});
  all.push_back({Fault::kFiniteStandIn, "q_len=3 kv_len=6 head_dim=64 scale=1 causal", [](Case& c) {
                   c.fill("q", [](const int64_t* i) { return i[3] == 0 ? 512.0 : 0.0; });
                   c.fill("k", [](const int64_t* i) { return i[3] == 0 ? -512.0 : 0.0; });
                   c.fill("v", [](const int64_t* i) { return static_cast<double>(i[2]); });
                 }});
  all.push_back({Fault::kEmptyRowNan, "q_len=5 kv_len=2 head_dim=8 causal"});
  all.push_back({Fault::kNanHidden, "q_heads=2 q_len=2 kv_len=3 head_dim=4", [](Case& c) {
                   c.set("q", {0, 1, 0, 2}, std::nan(""));
                 }});

  all.push_back({Fault::kSplitsAveraged, "q_len=2 kv_len=257 head_dim=8 num_splits=3"});
  all.push_back(
      {Fault::kLastSplitDropped, "q_len=2 kv_len=300 head_dim=8 num_splits=3", focus(299)});
  const auto strong_sink = [](Case& c) { c.fill("sink", 5); };
  const std::string sink = "q_heads=2 q_len=2 kv_len=130 head_dim=8 sink num_splits=2";
  all.push_back({Fault::kSinkPerSplit, sink, strong_sink});
  all.push_back({Fault::kSinkDropped, sink, strong_sink});
  all.push_back({Fault::kLseWithoutSink, sink, strong_sink});

  all.push_back({Fault::kScaleOfPaddedDim, "q_len=3 kv_len=33 head_dim=5 fill=onehot"});
  all.push_back({Fault::kSoftcapAfterMask, "q_len=4 kv_len=4 head_dim=8 causal softcap=1"});
  all.push_back({Fault::kAlibiFromQueryIndex, "q_len=1 kv_len=40 head_dim=8 alibi"});
  all.push_back({Fault::kLseBaseTwo, "q_len=3 kv_len=8 head_dim=8"});
  all.push_back({Fault::kLseRoundedTo16Bits, "q_len=3 kv_len=65 head_dim=8"});

  // Precision: what a 16-bit kernel may lose, and what not.
  const std::vector<std::string> half = {"bf16", "f16"};
  all.push_back({Fault::kScoresIn16Bits, "q_len=8 kv_len=65 head_dim=64 fill=huge", {}, half});
  const auto ones = [](Case& c) {
    c.fill("q", 0);
    c.fill("v", 1);
  };
  // Probabilities just below a 16-bit number: towards zero loses a whole step of it, to nearest
  // almost nothing. With an F32 output no other term of the gate hides it.
  for (const auto& [dtype, prob] :
       {std::pair("bf16", 0.5 + 0x1p-8), std::pair("f16", 0.5 + 0x1p-11)}) {
    const double log_prob = std::log(prob * (1 - 0x1p-15));
    all.push_back({Fault::kProbsTruncated,
                   "out_dtype=f32 q_len=1 kv_len=65 head_dim=1 scale=1 bias bias_dtype=f32",
                   [log_prob](Case& c) {
                     c.fill("q", 0);
                     c.fill("bias", [&](const int64_t* i) { return i[3] == 0 ? 0 : log_prob; });
                     c.fill("v", [](const int64_t* i) { return i[2] == 0 ? 0.0 : 1.0; });
                   },
                   {dtype}});
  }
  // Equal weights over so many keys that the sum, the accumulator and the quotient all round the
  // same way (found by a search): three roundings of the output instead of one.
  const auto rounds_up = [](double low, double step, int64_t higher) {
    return [=](Case& c) {
      c.fill("q", 0);
      c.fill("v", [&](const int64_t* i) { return i[2] < higher ? low + step : low; });
    };
  };
  all.push_back({Fault::kOutRoundedTwice,
                 "q_len=1 kv_len=267 head_dim=4",
                 rounds_up(1.09375, 0x1p-7, 120),
                 {"bf16"}});
  all.push_back({Fault::kOutRoundedTwice,
                 "q_len=1 kv_len=2071 head_dim=4",
                 rounds_up(1.04296875, 0x1p-10, 1011),
                 {"f16"}});
  all.push_back({Fault::kRowSumIn16Bits, "q_len=2 kv_len=4100 head_dim=8", ones, half});
  all.push_back({Fault::kAccumulatorIn16Bits, "q_len=2 kv_len=4100 head_dim=8", ones, half});
  return all;
}

std::string words(const Trap& trap, const std::string& dtype) {
  return "dtype=" + dtype + " " + trap.problem;
}

testing::Comparison judge(const Trap& trap, const std::string& dtype, Fault fault) {
  Case c(words(trap, dtype));
  if (trap.edit) trap.edit(c);
  run(c, fault);
  return testing::compare_all(c.problem(), c.args(), testing::expected(c.problem(), c.args()));
}

class Mutants : public ::testing::TestWithParam<Trap> {};

TEST_P(Mutants, AreCaught) {
  for (const std::string& dtype : GetParam().dtypes) {
    const testing::Comparison result = judge(GetParam(), dtype, GetParam().fault);
    EXPECT_FALSE(result.passed) << name_of(GetParam().fault) << " passes on "
                                << words(GetParam(), dtype) << ", ratio " << result.max_ratio;
    EXPECT_GT(result.compared, 0);
  }
}

TEST_P(Mutants, HonestVersionPassesWithHalfTheGate) {
  for (const std::string& dtype : GetParam().dtypes) {
    const testing::Comparison result = judge(GetParam(), dtype, Fault::kNone);
    EXPECT_TRUE(result.passed) << words(GetParam(), dtype) << ": " << result.message;
    EXPECT_LE(result.max_ratio, 0.5) << words(GetParam(), dtype);
    EXPECT_GT(result.compared, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Negative, Mutants, ::testing::ValuesIn(traps()), [](const auto& info) {
  return std::string(name_of(info.param.fault)) + "_" + std::to_string(info.index);
});

TEST(Negative, EveryFaultHasATrap) {
  for (Fault fault : all_faults()) {
    bool found = false;
    for (const Trap& trap : traps()) found = found || trap.fault == fault;
    EXPECT_TRUE(found) << name_of(fault);
  }
}

}  // namespace
}  // namespace runmax::negative
