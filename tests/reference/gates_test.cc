// The gates: honest computations pass with room to spare, each broken one is caught, and patterns
// of NaN, infinity and zero are exact.
#include "testing/gates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "reference/number.h"
#include "reference/oracle.h"
#include "reference/plain.h"
#include "testing/case.h"
#include "testing/element.h"

namespace runmax {
namespace {

using reference::Forward;
using testing::Case;
using testing::Comparison;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

float round_to(runmax_dtype type, float value) {
  return static_cast<float>(reference::round_to(type, static_cast<double>(value)));
}

float truncate_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits &= 0xffff0000u;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// A three-step kernel for one batch entry and head, F32 inside, with places to break it. Each hook
// is applied where its name says; the honest kernel has none.
struct Toy {
  using Hook = std::function<float(float)>;
  Hook operand, score, exponential, prob, row_sum, accumulator, output;
  bool lse_of_rounded_probs = false;

  static float apply(const Hook& hook, float x) { return hook ? hook(x) : x; }

  void run(Case& c) const {
    const runmax_problem& p = c.problem();
    const auto scale = static_cast<float>(
        (p.present & RUNMAX_PRESENT_SCALE) != 0 ? p.scale : 1 / std::sqrt(p.q.shape[3]));
    const auto at = [&](const char* name, int64_t i, int64_t d) {
      return static_cast<float>(c.at(name, {0, 0, i, d}));
    };
    for (int64_t i = 0; i < p.q.shape[2]; ++i) {
      std::vector<float> scores;
      float max = -std::numeric_limits<float>::infinity();
      for (int64_t j = 0; j < p.k.shape[2]; ++j) {
        float dot = 0;
        for (int64_t d = 0; d < p.q.shape[3]; ++d) {
          dot += apply(operand, at("q", i, d)) * apply(operand, at("k", j, d));
        }
        const float bias = c.has("bias") ? at("bias", i, j) : 0;
        scores.push_back(apply(score, scale * dot + bias));
        max = std::max(max, scores.back());
      }
      float sum = 0, sum_of_rounded = 0;
      std::vector<float> out(static_cast<size_t>(p.v.shape[3]));
      for (int64_t j = 0; j < p.k.shape[2]; ++j) {
        const float e = apply(exponential, std::exp(scores[static_cast<size_t>(j)] - max));
        const float rounded = apply(prob, e);
        sum = apply(row_sum, sum + e);
        sum_of_rounded += rounded;
        for (int64_t d = 0; d < p.v.shape[3]; ++d) {
          float& x = out[static_cast<size_t>(d)];
          x = apply(accumulator, x + rounded * at("v", j, d));
        }
      }
      for (int64_t d = 0; d < p.v.shape[3]; ++d) {
        c.set("out", {0, 0, i, d}, apply(output, out[static_cast<size_t>(d)]) / sum);
      }
      c.set("lse", {0, 0, i}, max + std::log(lse_of_rounded_probs ? sum_of_rounded : sum));
    }
  }
};

Toy rounding_toy(runmax_dtype type) {
  Toy toy;
  toy.prob = [type](float x) { return round_to(type, x); };
  return toy;
}

Comparison out_of(Case& c, const Toy& toy) {
  toy.run(c);
  return testing::compare_out(c.problem(), c.args(), reference::forward(c.problem(), c.args()));
}
Comparison lse_of(Case& c, const Toy& toy) {
  toy.run(c);
  return testing::compare_lse(c.problem(), c.args(), reference::forward(c.problem(), c.args()));
}

// ------------------------------------------------------------------------- plain within the gates

std::vector<std::string> problems() {
  std::vector<std::string> all;
  for (const char* dtype : {"f32", "f64", "bf16", "f16"}) {
    const std::string type = std::string("dtype=") + dtype + " ";
    for (const char* text : {
             "batch=2 q_heads=4 kv_heads=2 q_len=65 kv_len=129 head_dim=64 causal lse_lo",
             "q_heads=2 q_len=33 kv_len=300 head_dim=40 head_dim_v=72 window=50,3 sink_tokens=2",
             "batch=3 q_heads=2 q_len=17 kv_len=50 head_dim=5 seqused_q seqused_kv causal sink",
             "q_heads=2 q_len=64 kv_len=100 head_dim=32 softcap=3 alibi causal lse_lo",
             "q_heads=2 q_len=40 kv_len=70 head_dim=16 bias=1hqk mask=11qk fill=hostile lse_lo",
             "batch=2 q_heads=3 q_len=31 kv_len=62 head_dim=8 scale=-0.3 segments=3",
             "q_heads=2 q_len=20 kv_len=90 head_dim=16 block_size=4,16 scale=0",
             "q_heads=2 q_len=20 kv_len=90 head_dim=16 dropout=0.3 seed=7",
             "batch=3 q_heads=4 kv_heads=2 q_len=50 kv_len=60 head_dim=24 packed causal lse_lo",
             "q_heads=1 q_len=30 kv_len=30 head_dim=64 fill=huge lse_lo",
             "q_heads=1 q_len=30 kv_len=80 head_dim=64 fill=onehot",
             "q_heads=1 q_len=4 kv_len=2000 head_dim=64 fill=counting",
             "q_heads=2 q_len=9 kv_len=33 head_dim=8 layout=strided prefix_len causal",
             "q_heads=1 q_len=1500 kv_len=3 head_dim=4",
         }) {
      all.push_back(type + text);
    }
    all.push_back(type + "out_dtype=f32 q_heads=2 q_len=50 kv_len=77 head_dim=32");
  }
  return all;
}

TEST(Plain, IsWithinTheGatesInEveryTypeAndForEveryOption) {
  for (const std::string& text : problems()) {
    Case c(text);
    // f64 with out f32 does not exist.
    if (c.problem().q.dtype == RUNMAX_F64 && c.problem().out.dtype != RUNMAX_F64) continue;
    ASSERT_EQ(runmax_validate(&c.problem()), RUNMAX_OK) << text << ": " << runmax_last_error();
    c.poison_hidden();
    c.seal();
    ASSERT_TRUE(reference::plain_forward(c.problem(), c.args(), {.threads = 2}));
    EXPECT_EQ(c.damage(), "") << text;
    EXPECT_EQ(c.unwritten("out"), 0) << text;
    const Forward expected = reference::forward(c.problem(), c.args());
    const Comparison result = testing::compare_all(c.problem(), c.args(), expected);
    EXPECT_TRUE(result.passed) << text << "\n" << result.message;
    EXPECT_GT(result.compared, 0);
    // Wide types are at half their gate; where probabilities are rounded to 16 bits the worst case
    // is 80 % (docs/numerics.md).
    const bool wide = c.problem().q.dtype == RUNMAX_F32 || c.problem().q.dtype == RUNMAX_F64;
    EXPECT_LE(result.max_ratio, wide ? 0.5 : 0.8) << text;
    if (c.has("lse_lo")) {
      const Comparison rest = testing::compare_lse_lo(c.problem(), c.args(), expected);
      EXPECT_TRUE(rest.passed) << text << "\n" << rest.message;
    }
  }
}

TEST(Plain, ThreadsDoNotChangeItsBits) {
  Case one("dtype=f32 q_heads=2 q_len=200 kv_len=300 head_dim=64 causal");
  Case three("dtype=f32 q_heads=2 q_len=200 kv_len=300 head_dim=64 causal");
  ASSERT_TRUE(reference::plain_forward(one.problem(), one.args(), {.threads = 1}));
  ASSERT_TRUE(reference::plain_forward(three.problem(), three.args(), {.threads = 3}));
  EXPECT_EQ(one.values("out"), three.values("out"));
}

TEST(Plain, SaysItsMemoryAndKeepsToALimit) {
  Case c("dtype=f32 q_len=1000 kv_len=2000 head_dim=64");
  const uint64_t bytes = reference::plain_memory(c.problem(), c.args());
  EXPECT_GE(bytes, 1000u * 2000u * 4u);
  EXPECT_LE(bytes, 1000u * 2000u * 4u * 5 / 4);
  c.seal();
  EXPECT_FALSE(reference::plain_forward(c.problem(), c.args(), {.memory_limit = bytes - 1}));
  EXPECT_EQ(c.unwritten("out"), 1000 * 64);
  EXPECT_TRUE(reference::plain_forward(c.problem(), c.args(), {.memory_limit = bytes}));
  EXPECT_EQ(c.unwritten("out"), 0);
}

TEST(Plain, FailsWhereMemoryCannotBeHad) {
  // Only shapes are large: inputs are broadcast from one row, and nothing is read or written.
  Case c("dtype=f32 q_len=1 kv_len=1 head_dim=1");
  runmax_problem huge = c.problem();
  for (runmax_tensor* t : {&huge.q, &huge.k, &huge.v, &huge.out, &huge.lse}) {
    t->shape[2] = int64_t{1} << 28;
    t->stride[2] = 0;
  }
  c.seal();
  EXPECT_FALSE(reference::plain_forward(huge, c.args()));
  EXPECT_EQ(c.unwritten("out"), 1);
}

// ---------------------------------------------------------------------------------------- mutants

TEST(Gate, CatchesTruncatedProbabilities) {
  // All probabilities but the maximum's lie just below a bf16 number: truncation loses nearly a
  // whole unit of each, rounding nearly nothing. The maximum has value 0.
  Case c("dtype=bf16 out_dtype=f32 bias_dtype=f32 q_len=4 kv_len=65 head_dim=8 bias=11qk");
  c.fill("q", 0);
  c.fill("v", [](const int64_t* i) { return i[2] == 0 ? 0.0 : 1.0; });
  c.fill("bias", [](const int64_t* i) { return i[3] == 0 ? 0 : std::log(1.0075 / 64); });
  EXPECT_LE(out_of(c, Toy{}).max_ratio, 0.5);
  EXPECT_LE(out_of(c, rounding_toy(RUNMAX_BF16)).max_ratio, 0.5);
  Toy truncating;
  truncating.prob = truncate_to_bf16;
  EXPECT_GT(out_of(c, truncating).max_ratio, 1.2);
}

TEST(Gate, CatchesAnOutputRoundedTwice) {
  // Every rounding goes down by nearly half a unit. Keys 1 and 2: both probabilities lie just below
  // the middle between a power of two and the next bf16 number, and so does the sum of their
  // products; key 3 with value 0 brings the normalised result there too. Key 0 is the maximum.
  Case c("dtype=bf16 bias_dtype=f32 q_len=1 kv_len=4 head_dim=1 bias=11qk");
  constexpr double kBelow = 1 + 0x1.f8p-9, kA = kBelow / 8, kB = kBelow / 4096;
  const double probs[] = {1, kA, kB, 2 / kBelow - 1 - kA - kB}, v[] = {0, 1, 0x1.f8p0, 0};
  c.fill("q", 0);
  c.fill("v", [&](const int64_t* i) { return v[i[2]]; });
  c.fill("bias", [&](const int64_t* i) { return std::log(probs[i[3]]); });
  EXPECT_LE(out_of(c, Toy{}).max_ratio, 0.5);
  Toy honest = rounding_toy(RUNMAX_BF16);
  EXPECT_LE(out_of(c, honest).max_ratio, 0.5);
  Toy twice = honest;
  twice.output = [](float x) { return round_to(RUNMAX_BF16, x); };
  EXPECT_GT(out_of(c, twice).max_ratio, 1.1);

  // Few keys, many rows: honest kernels keep their distance from the worst case of every rounding.
  Case many("dtype=bf16 bias_dtype=f32 q_len=1024 kv_len=3 head_dim=1 head_dim_v=256 bias=11qk");
  many.fill("q", 0);
  many.fill("v", [](const int64_t* i) {
    return i[2] == 0 ? 0 : 1 + testing::random_unit(3, static_cast<uint64_t>(i[2] * 256 + i[3]));
  });
  EXPECT_LE(out_of(many, Toy{}).max_ratio, 0.5);
  EXPECT_LE(out_of(many, honest).max_ratio, 0.8);
}

TEST(Gate, CatchesSumsInBf16) {
  Case c("dtype=bf16 q_len=2 kv_len=513 head_dim=8");
  c.fill("q", 0);
  c.fill("v", 1);
  EXPECT_LE(out_of(c, Toy{}).max_ratio, 0.5);
  const auto bf16 = [](float x) { return round_to(RUNMAX_BF16, x); };
  Toy row_sum, accumulator;
  row_sum.row_sum = bf16;
  EXPECT_FALSE(out_of(c, row_sum).passed);
  EXPECT_FALSE(lse_of(c, row_sum).passed);
  accumulator.accumulator = bf16;
  EXPECT_FALSE(out_of(c, accumulator).passed);
  EXPECT_TRUE(lse_of(c, accumulator).passed);
}

TEST(Gate, CatchesAnLseOfRoundedProbabilities) {
  Case c("dtype=bf16 q_len=64 kv_len=4 head_dim=16");
  Toy toy = rounding_toy(RUNMAX_BF16);
  EXPECT_LE(lse_of(c, toy).max_ratio, 0.5);
  toy.lse_of_rounded_probs = true;
  EXPECT_FALSE(lse_of(c, toy).passed);
}

TEST(Gate, CatchesLostPrecisionInF32) {
  // q and k have more bits than TF32 holds, all rounded the same way.
  Case c("dtype=f32 q_len=16 kv_len=8 head_dim=64 head_dim_v=8");
  c.fill("q", 1 + 0x1.8p-12);
  c.fill("k", [](const int64_t* i) { return (1 + 0x1.8p-12) * (i[2] % 2 == 0 ? 0.25 : -0.25); });
  EXPECT_LE(out_of(c, Toy{}).max_ratio, 0.5);
  EXPECT_LE(lse_of(c, Toy{}).max_ratio, 0.5);
  const auto to_bits = [](int dropped) {
    return [dropped](float x) {
      uint32_t bits;
      std::memcpy(&bits, &x, sizeof bits);
      bits = (bits + (1u << (dropped - 1))) & ~((1u << dropped) - 1);
      std::memcpy(&x, &bits, sizeof x);
      return x;
    };
  };
  Toy tf32, scores, exponential, probs, output;
  tf32.operand = to_bits(13);
  EXPECT_FALSE(out_of(c, tf32).passed);
  EXPECT_FALSE(lse_of(c, tf32).passed);
  scores.score = to_bits(13);
  EXPECT_FALSE(out_of(c, scores).passed);
  Case few("dtype=f32 q_len=64 kv_len=4 head_dim=16");
  EXPECT_LE(out_of(few, Toy{}).max_ratio, 0.5);
  exponential.exponential = to_bits(11);  // about what a polynomial of degree 3 gives
  EXPECT_FALSE(out_of(few, exponential).passed);
  EXPECT_FALSE(lse_of(few, exponential).passed);
  probs.prob = [](float x) { return round_to(RUNMAX_F16, x); };
  EXPECT_FALSE(out_of(few, probs).passed);
  output.output = [](float x) { return round_to(RUNMAX_BF16, x); };
  EXPECT_FALSE(out_of(c, output).passed);
}

TEST(Gate, DoesNotGrowWithLength) {
  // One key in many is wrong by a bit of its weight: the same relative fault at every length.
  double ratio[2];
  for (int n = 0; n < 2; ++n) {
    Case c("dtype=f32 q_len=1 head_dim=8 kv_len=" + std::to_string(n == 0 ? 128 : 16384));
    c.fill("q", 0);
    c.fill("v", 1);
    Toy toy;
    toy.output = [](float x) { return x * (1 + 0x1p-16f); };
    ratio[n] = out_of(c, toy).max_ratio;
  }
  EXPECT_GT(ratio[0], 1);
  EXPECT_NEAR(ratio[1], ratio[0], 0.01 * ratio[0]);
}

TEST(Gate, CatchesSumsWhoseErrorGrowsWithLength) {
  // Equal terms round alike, so that a single chain of F32 additions drifts.
  const auto ratio = [](int64_t kv_len) {
    Case c("dtype=f32 q_len=1 head_dim=1 kv_len=" + std::to_string(kv_len));
    c.fill("q", 0);
    c.fill("v", 0.1);
    return out_of(c, Toy{}).max_ratio;
  };
  EXPECT_LE(ratio(64), 0.5);
  EXPECT_GT(ratio(65536), 1);
}

TEST(Gate, LseLoHasToBeWhatRoundingLost) {
  Case c("dtype=f32 q_len=16 kv_len=40 head_dim=4 lse_lo fill=huge");
  ASSERT_TRUE(reference::plain_forward(c.problem(), c.args()));
  const Forward expected = reference::forward(c.problem(), c.args());
  const auto compare = [&] { return testing::compare_lse_lo(c.problem(), c.args(), expected); };
  EXPECT_LE(compare().max_ratio, 0.5);
  // Scores of about 2000: half an ulp of lse is far more than the gate of F32 sums.
  Case small("dtype=f32 q_len=1 kv_len=2 head_dim=1 lse_lo scale=1");
  small.fill("q", 1);
  small.fill("k", 4096);
  ASSERT_TRUE(reference::plain_forward(small.problem(), small.args()));
  const double lo = small.at("lse_lo", {0, 0, 0});
  ASSERT_NE(lo, 0);
  const Forward two = reference::forward(small.problem(), small.args());
  EXPECT_TRUE(testing::compare_lse_lo(small.problem(), small.args(), two).passed);
  // An lse_lo larger than a rounding of lse is not a rest, though the sum is right.
  small.set("lse", {0, 0, 0}, small.at("lse", {0, 0, 0}) + 0x1p-10);
  small.set("lse_lo", {0, 0, 0}, lo - 0x1p-10);
  EXPECT_FALSE(testing::compare_lse_lo(small.problem(), small.args(), two).passed);
}

// --------------------------------------------------------------------------------------- patterns

class Pattern : public ::testing::Test {
 protected:
  Pattern()
      : c_("dtype=f32 batch=2 q_heads=2 q_len=4 kv_len=3 head_dim=3 head_dim_v=2 causal "
           "seqused_q=4,2 layout=strided lse_lo") {
    c_.fill("q", 1);
    c_.set("v", {1, 1, 2, 0}, kNaN);  // seen by the last used row of batch 1, head 1
    c_.set("v", {1, 0, 2, 1}, kInf);
    EXPECT_TRUE(reference::plain_forward(c_.problem(), c_.args()));
    expected_ = reference::forward(c_.problem(), c_.args());
    EXPECT_TRUE(compare().passed) << compare().message;
  }
  Comparison compare() const { return testing::compare_all(c_.problem(), c_.args(), expected_); }
  // Does changing this element fail, with a message that names it?
  void expect_caught(const char* name, Case::Index index, double value, const std::string& where) {
    const double before = c_.at(name, index);
    c_.set(name, index, value);
    const Comparison result = compare();
    EXPECT_FALSE(result.passed) << where << " = " << value;
    EXPECT_EQ(result.message.rfind(where, 0), 0u) << result.message;
    EXPECT_EQ(result.max_ratio, kInf);
    c_.set(name, index, before);
    EXPECT_TRUE(compare().passed);
  }

  Case c_;
  Forward expected_;
};

TEST_F(Pattern, EmptyAndUnusedRowsAreExact) {
  for (const double wrong : {-0.0, 1e-45, kNaN, 1.0}) {
    expect_caught("out", {0, 1, 0, 1}, wrong, "out[0, 1, 0, 1]");  // sees no key
    expect_caught("out", {1, 1, 3, 0}, wrong, "out[1, 1, 3, 0]");  // past seqused_q
    expect_caught("lse_lo", {1, 1, 3}, wrong, "lse_lo[1, 1, 3]");
  }
  for (const double wrong : {-3e38, kInf, kNaN, 0.0}) {
    expect_caught("lse", {0, 1, 0}, wrong, "lse[0, 1, 0]");
    expect_caught("lse", {1, 1, 3}, wrong, "lse[1, 1, 3]");
  }
}

TEST_F(Pattern, NonFiniteOnlyWhereTheOracleHasIt) {
  ASSERT_TRUE(std::isnan(c_.at("out", {1, 1, 1, 0})));
  expect_caught("out", {1, 1, 1, 0}, 0, "out[1, 1, 1, 0]");
  expect_caught("out", {1, 1, 1, 0}, kInf, "out[1, 1, 1, 0]");
  expect_caught("out", {1, 0, 1, 1}, -kInf, "out[1, 0, 1, 1]");
  expect_caught("out", {1, 0, 1, 1}, 5, "out[1, 0, 1, 1]");
  for (const double wrong : {kNaN, kInf, -kInf}) {
    expect_caught("out", {0, 0, 3, 0}, wrong, "out[0, 0, 3, 0]");
    expect_caught("lse", {0, 0, 3}, wrong, "lse[0, 0, 3]");
  }
}

TEST(Comparison, KeepUnusedRowsAreNotLookedAt) {
  Case c("dtype=f32 q_len=4 kv_len=3 head_dim=2 seqused_q=2 keep_unused");
  c.fill("out", 77);
  c.fill("lse", 77);
  ASSERT_TRUE(reference::plain_forward(c.problem(), c.args()));
  const Forward expected = reference::forward(c.problem(), c.args());
  const Comparison result = testing::compare_out(c.problem(), c.args(), expected);
  EXPECT_TRUE(result.passed) << result.message;
  EXPECT_EQ(result.compared, 4);
  EXPECT_EQ(c.at("out", {0, 0, 3, 1}), 77);
}

TEST(Comparison, PackedElementsFindTheirRow) {
  Case c(
      "dtype=f32 batch=2 q_heads=3 q_len=5 kv_len=4 head_dim=2 packed causal "
      "cu_seqlens_q=0,5,7 cu_seqlens_kv=0,2,6");
  ASSERT_TRUE(reference::plain_forward(c.problem(), c.args()));
  const Forward expected = reference::forward(c.problem(), c.args());
  EXPECT_TRUE(testing::compare_all(c.problem(), c.args(), expected).passed);
  // Row 0 of sequence 0 is empty in every head: -0 there is wrong, and only there.
  c.set("out", {0, 2, 1}, -0.0);
  EXPECT_EQ(testing::compare_out(c.problem(), c.args(), expected).worst, 5);
}

TEST(Comparison, OverflowOfTheOutputIsInfinity) {
  Case c("dtype=f16 q_len=1 kv_len=1 head_dim=1 dropout=0.5 seed=1");
  c.fill("v", 60000);
  Forward expected = reference::forward(c.problem(), c.args());
  ASSERT_EQ(expected.out[0], 120000) << "the seed has to keep the only key";
  c.set("lse", {0, 0, 0}, expected.lse[0]);
  c.set("out", {0, 0, 0, 0}, kInf);
  EXPECT_TRUE(testing::compare_out(c.problem(), c.args(), expected).passed);
  c.set("out", {0, 0, 0, 0}, -kInf);
  EXPECT_FALSE(testing::compare_out(c.problem(), c.args(), expected).passed);
}

TEST(Comparison, SubnormalOutputsHaveTheRoundingOfTheirType) {
  for (const char* dtype : {"f16", "bf16", "f32"}) {
    Case c("q_len=1 kv_len=2 head_dim=1 dtype=" + std::string(dtype));
    c.fill("q", 0);
    const double tiny = reference::format(c.problem().v.dtype).tiny;
    c.fill("v", [&](const int64_t* i) { return i[2] == 0 ? 3 * tiny : 0; });
    ASSERT_TRUE(reference::plain_forward(c.problem(), c.args()));
    const Forward expected = reference::forward(c.problem(), c.args());
    const Comparison result = testing::compare_out(c.problem(), c.args(), expected);
    EXPECT_TRUE(result.passed) << result.message;
    c.set("out", {0, 0, 0, 0}, 8 * tiny);
    EXPECT_FALSE(testing::compare_out(c.problem(), c.args(), expected).passed);
  }
}

TEST(Comparison, MergeHasTheSameGates) {
  Case c("direction=merge dtype=f32 batch=2 q_heads=2 q_len=3 head_dim=4 partials=3");
  const Forward expected = reference::merge(c.problem(), c.args());
  const auto fill = [&](double factor) {
    for (int64_t n = 0; n < 12; ++n) {
      const int64_t b = n / 6, h = n / 3 % 2, i = n % 3;
      c.set("lse", {b, h, i}, expected.lse[static_cast<size_t>(n)]);
      for (int64_t d = 0; d < 4; ++d) {
        c.set("out", {b, h, i, d}, factor * expected.out[static_cast<size_t>(n * 4 + d)]);
      }
    }
  };
  fill(1);
  const Comparison result = testing::compare_all(c.problem(), c.args(), expected);
  EXPECT_TRUE(result.passed) << result.message;
  EXPECT_LE(result.max_ratio, 0.5);
  fill(1 + 0x1p-14);
  EXPECT_FALSE(testing::compare_all(c.problem(), c.args(), expected).passed);
}

TEST(Comparison, FamilyLimitIsTwicePlainAndARounding) {
  EXPECT_EQ(testing::family_limit(RUNMAX_BF16, 0.5, 2), 1 + 0x1p-7);
  EXPECT_EQ(testing::family_limit(RUNMAX_F32, 0, 1), 0x1p-24);
}

}  // namespace
}  // namespace runmax
