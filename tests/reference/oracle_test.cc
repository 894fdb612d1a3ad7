// The oracle against closed forms: cases whose right value is known on paper, most of them faults
// that other attention libraries had.
#include "reference/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "reference/number.h"
#include "reference/philox.h"
#include "testing/case.h"

namespace runmax {
namespace {

using reference::Forward;
using testing::Case;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kTolerance = 1e-12;  // of double arithmetic on the sizes used here

Forward oracle(const Case& c, const std::vector<int64_t>& rows = {}) {
  return reference::forward(c.problem(), c.args(), rows);
}

// Channel 0 of out of every row.
std::vector<double> first_channel(const Forward& f) {
  std::vector<double> values;
  for (size_t at = 0; at < f.out.size(); at += static_cast<size_t>(f.head_dim_v())) {
    values.push_back(f.out[at]);
  }
  return values;
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 double tolerance = kTolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t n = 0; n < actual.size(); ++n) {
    if (std::isnan(expected[n])) {
      EXPECT_TRUE(std::isnan(actual[n])) << "at " << n << ": " << actual[n];
    } else if (std::isinf(expected[n]) || expected[n] == 0) {
      EXPECT_EQ(actual[n], expected[n]) << "at " << n;
    } else {
      EXPECT_NEAR(actual[n], expected[n], tolerance * std::fabs(expected[n])) << "at " << n;
    }
  }
}

// q = 0, so that every visible key weighs the same, and v[j] = j.
void equal_weights(Case& c) {
  c.fill("q", 0);
  if (c.spec().packed) {
    c.fill("v", [](const int64_t* i) { return static_cast<double>(i[0]); });
  } else {
    c.fill("v", [](const int64_t* i) { return static_cast<double>(i[2]); });
  }
}

// --------------------------------------------------------------------------------------- Philox

TEST(Philox, GivesTheKnownAnswersOfItsAuthors) {
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(reference::philox({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(reference::philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      reference::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// -------------------------------------------------------------------------------------- numbers

TEST(Number, EveryHalfPrecisionCodeSurvivesARoundTrip) {
  for (const runmax_dtype type : {RUNMAX_BF16, RUNMAX_F16}) {
    for (int code = 0; code < 65536; ++code) {
      const auto bits = static_cast<uint16_t>(code);
      const double value = reference::load(type, &bits, 0);
      uint16_t back = 0;
      reference::store(type, &back, 0, value);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(reference::load(type, &back, 0))) << code;
      } else {
        ASSERT_EQ(back, bits) << code << " = " << value;
      }
    }
  }
}

TEST(Number, RoundsOnceToNearestWithTiesToEven) {
  // Between neighbours a and b: the middle goes to the even one, anything off it to the nearer.
  for (const runmax_dtype type : {RUNMAX_BF16, RUNMAX_F16}) {
    const int top = type == RUNMAX_BF16 ? 0x7f7f : 0x7bff;
    for (int code = 0; code < top; ++code) {
      const auto low = static_cast<uint16_t>(code), high = static_cast<uint16_t>(code + 1);
      const double a = reference::load(type, &low, 0), b = reference::load(type, &high, 0);
      const double middle = (a + b) / 2;
      ASSERT_EQ(reference::round_to(type, middle), code % 2 == 0 ? a : b) << code;
      ASSERT_EQ(reference::round_to(type, std::nextafter(middle, 0)), a) << code;
      ASSERT_EQ(reference::round_to(type, std::nextafter(middle, kInf)), b) << code;
      ASSERT_EQ(reference::round_to(type, -std::nextafter(middle, kInf)), -b) << code;
    }
  }
  EXPECT_EQ(reference::round_to(RUNMAX_F16, 65519.99), 65504);
  EXPECT_EQ(reference::round_to(RUNMAX_F16, 65520), kInf);
  EXPECT_EQ(reference::round_to(RUNMAX_F32, 1 + 0x1p-24), 1);
  EXPECT_EQ(reference::round_to(RUNMAX_F32, 1 + 0x1.8p-24), 1 + 0x1p-23);
}

// -------------------------------------------------------------------------------------- softmax

TEST(Oracle, FollowsTheFormulaOnNumbersWorkedOutByHand) {
  // s = [ln 2, 0], so that the weights are 2/3 and 1/3.
  Case c("dtype=f64 q_len=1 kv_len=2 head_dim=1 head_dim_v=2 scale=0.5");
  c.set("q", {0, 0, 0, 0}, 2);
  c.set("k", {0, 0, 0, 0}, std::log(2));
  c.set("k", {0, 0, 1, 0}, 0);
  c.set("v", {0, 0, 0, 0}, 3);
  c.set("v", {0, 0, 1, 0}, -3);
  c.set("v", {0, 0, 0, 1}, 0);
  c.set("v", {0, 0, 1, 1}, 6);
  const Forward f = oracle(c);
  expect_near(f.out, {1, 2}, 1e-15);
  expect_near(f.lse, {std::log(3)}, 1e-15);
  expect_near(f.out_terms, {3, 2}, 1e-15);
  EXPECT_EQ(f.visible_pairs, 2u);
}

TEST(Oracle, LseAloneOfThePublishedCase) {
  Case c("dtype=f32 q_len=2 kv_len=2 head_dim=1 scale=1");
  c.fill("q", [](const int64_t* i) { return i[2] == 0 ? 1.0 : 2.0; });
  c.fill("k", [](const int64_t* i) { return i[2] == 0 ? 0.0 : 3.0; });
  expect_near(oracle(c).lse, {3.048587, 6.002476}, 1e-6);
}

TEST(Oracle, DefaultScaleUsesTheTrueHeadDim) {
  for (const int d : {1, 3, 5, 63}) {
    Case c("dtype=f32 q_len=1 kv_len=2 head_dim_v=1 head_dim=" + std::to_string(d));
    c.fill("q", 1);
    c.fill("k", [](const int64_t* i) { return i[2] == 0 ? 1.0 : 0.0; });
    c.fill("v", [](const int64_t* i) { return i[2] == 0 ? 1.0 : 0.0; });
    expect_near(oracle(c).out, {1 / (1 + std::exp(-std::sqrt(d)))});
  }
}

TEST(Oracle, ScaleOfZeroWeighsVisibleKeysEqually) {
  for (const double k : {7.0, 1e4}) {
    Case c("dtype=f32 q_len=3 head_dim=4 causal scale=0");
    c.fill("q", 5);
    c.fill("k", k);
    c.fill("v", [](const int64_t* i) { return 3.0 * static_cast<double>(i[2] + 1); });
    const Forward f = oracle(c);
    expect_near(first_channel(f), {3, 4.5, 6});
    expect_near(f.lse, {0, std::log(2), std::log(3)});
  }
}

TEST(Oracle, ANegativeScaleIsThatOfNegatedQueries) {
  Case negative("dtype=f32 q_len=5 kv_len=9 head_dim=3 scale=-0.7");
  Case positive("dtype=f32 q_len=5 kv_len=9 head_dim=3 scale=0.7");
  positive.fill("q", [&](const int64_t* i) { return -negative.at("q", {i[0], i[1], i[2], i[3]}); });
  EXPECT_EQ(oracle(negative).out, oracle(positive).out);
  EXPECT_EQ(oracle(negative).lse, oracle(positive).lse);
}

TEST(Oracle, VeryNegativeScoresAreScores) {
  Case c("dtype=f32 q_len=1 kv_len=6 head_dim=64 scale=1");
  c.fill("q", [](const int64_t* i) { return i[3] == 0 ? 512.0 : 0.0; });
  c.fill("k", [](const int64_t* i) { return i[3] == 0 ? -512.0 : 0.0; });
  c.fill("v", [](const int64_t* i) { return static_cast<double>(i[2]); });
  const Forward f = oracle(c);
  expect_near(first_channel(f), {2.5});
  expect_near(f.lse, {-262144 + std::log(6)});
}

TEST(Oracle, ScoresBeyondTheRangeOfF16) {
  Case c("dtype=f16 q_len=1 kv_len=2 head_dim=64 scale=0.125");
  c.fill("q", 60);
  c.fill("k", [](const int64_t* i) { return i[2] == 0 ? 60.0 : -60.0; });
  c.fill("v", [](const int64_t* i) { return static_cast<double>(i[2] + 1); });
  const Forward f = oracle(c);
  expect_near(first_channel(f), {1});
  expect_near(f.lse, {28800});
}

TEST(Oracle, LongRowsSumToOne) {
  Case c("dtype=f16 q_len=1 kv_len=4096 head_dim=8 head_dim_v=1");
  c.fill("q", 0);
  c.fill("v", [](const int64_t* i) { return i[2] < 2048 ? 0.0 : 1.0; });
  const Forward f = oracle(c);
  expect_near(f.out, {0.5});
  expect_near(f.lse, {std::log(4096)});
}

TEST(Oracle, HeadDimsOfKAndVDiffer) {
  // v is the first 512 channels of k.
  Case c("dtype=bf16 q_heads=16 kv_heads=1 q_len=1 kv_len=100 head_dim=576 head_dim_v=512 v_in_k");
  c.fill("q", 0);
  c.fill("k", [](const int64_t* i) { return static_cast<double>(i[2]); });
  const Forward f = oracle(c);
  EXPECT_EQ(f.out.size(), 16u * 512u);
  for (const double out : f.out) EXPECT_NEAR(out, 49.5, 1e-12);
  for (const double lse : f.lse) EXPECT_NEAR(lse, std::log(100), 1e-12);
}

TEST(Oracle, QueryHeadsShareKeyValueHeadsInGroups) {
  Case c("dtype=f32 q_heads=6 kv_heads=2 q_len=2 kv_len=3 head_dim=2");
  c.fill("v", [](const int64_t* i) { return static_cast<double>(i[1] + 10); });
  expect_near(first_channel(oracle(c)), {10, 10, 10, 10, 10, 10, 11, 11, 11, 11, 11, 11});
}

TEST(Oracle, F64IsComputedInLongDouble) {
  // Two keys with weights 1 and 2^-60: a double cannot hold their sum.
  Case c("dtype=f64 q_len=1 kv_len=2 head_dim=1 scale=1");
  c.fill("q", 1);
  c.fill("k", [](const int64_t* i) { return i[2] == 0 ? 0 : -60 * std::log(2); });
  EXPECT_NEAR(oracle(c).lse[0], 0x1p-60, 0x1p-63);
  // lse = 1 + 2^-60: lse_lo is the part that does not fit.
  c.fill("k", [](const int64_t* i) { return i[2] == 0 ? 1 : 1 - 60 * std::log(2); });
  EXPECT_EQ(oracle(c).lse[0], 1);
  EXPECT_NEAR(oracle(c).lse_lo[0], 0x1p-60, 0x1p-62);
}

TEST(Oracle, ReadsAnyLayout) {
  const std::string text = "dtype=f32 batch=2 q_heads=4 kv_heads=2 q_len=3 kv_len=5 head_dim=8";
  const Forward plain = oracle(Case(text));
  for (const char* layout : {"bshd", "bhds", "padded", "strided", "negative"}) {
    const Forward f = oracle(Case(text + " layout=" + layout));
    EXPECT_EQ(f.out, plain.out) << layout;
    EXPECT_EQ(f.lse, plain.lse) << layout;
  }
}

TEST(Oracle, ComputesOnlyTheRowsAskedFor) {
  Case c("dtype=f32 batch=2 q_heads=3 q_len=4 kv_len=5 head_dim=2");
  const Forward all = oracle(c), some = oracle(c, {1, 23});
  for (size_t row = 0; row < 24; ++row) {
    const bool asked = row == 1 || row == 23;
    EXPECT_EQ(some.row_computed[row] != 0, asked);
    EXPECT_EQ(some.lse[row], asked ? all.lse[row] : 0);
    EXPECT_EQ(some.out[2 * row], asked ? all.out[2 * row] : 0);
  }
  EXPECT_EQ(some.visible_pairs, 10u);
}

// ----------------------------------------------------------------------------------- visibility

TEST(Oracle, RowsMaskedOutAreEmpty) {
  const bool sees[3][4] = {{true, false, false, false}, {}, {true, true, true, true}};
  for (const double hidden : {-kInf, -double{std::numeric_limits<float>::max()}}) {
    Case c("dtype=f32 q_len=3 kv_len=4 head_dim=8 bias=11qk");
    c.fill("q", 0);
    c.fill("v", [](const int64_t* i) { return static_cast<double>(i[2] + 1); });
    c.fill("bias", [&](const int64_t* i) { return sees[i[2]][i[3]] ? 0 : hidden; });
    const Forward f = oracle(c);
    // The most negative finite number is a shift: row 1 is then the mean.
    const bool shift = std::isfinite(hidden);
    expect_near(first_channel(f), {1, shift ? 2.5 : 0, 2.5});
    expect_near(f.lse, {0, hidden, std::log(4)});
    EXPECT_EQ(f.row_keys, (shift ? std::vector<int64_t>{4, 4, 4} : std::vector<int64_t>{1, 0, 4}));
  }
  Case c("dtype=f32 q_len=3 kv_len=4 head_dim=8 mask=11qk");
  c.fill("q", 0);
  c.fill("v", [](const int64_t* i) { return static_cast<double>(i[2] + 1); });
  c.fill("mask", [&](const int64_t* i) { return sees[i[2]][i[3]] ? 1.0 : 0.0; });
  const Forward f = oracle(c);
  expect_near(first_channel(f), {1, 0, 2.5});
  expect_near(f.lse, {0, -kInf, std::log(4)});
}

TEST(Oracle, WindowsCountKeysBesideTheDiagonal) {
  Case left("dtype=f32 q_len=6 head_dim=4 window=2,0");
  equal_weights(left);
  const Forward f = oracle(left);
  expect_near(first_channel(f), {0, .5, 1, 2, 3, 4});
  EXPECT_EQ(f.row_keys, (std::vector<int64_t>{1, 2, 3, 3, 3, 3}));

  Case last("dtype=f32 q_len=1 kv_len=6 head_dim=4 window=2,0");
  equal_weights(last);
  expect_near(first_channel(oracle(last)), {4});

  Case right("dtype=f32 q_len=5 head_dim=4 window=0,1");
  equal_weights(right);
  expect_near(first_channel(oracle(right)), {.5, 1.5, 2.5, 3.5, 4});
}

TEST(Oracle, LongWindowHidesWholeTiles) {
  Case window("dtype=f32 q_len=640 head_dim=4 causal window=9,-1");
  Case bias("dtype=f32 q_len=640 head_dim=4 bias=11qk");
  bias.fill("bias", [](const int64_t* i) { return i[2] - 9 <= i[3] && i[3] <= i[2] ? 0 : -kInf; });
  for (Case* c : {&window, &bias}) {
    equal_weights(*c);
    const Forward f = oracle(*c);
    const std::vector<double> out = first_channel(f);
    for (int i = 0; i < 640; ++i) {
      EXPECT_NEAR(out[i], i < 9 ? i / 2.0 : i - 4.5, 1e-10);
      EXPECT_NEAR(f.lse[i], std::log(std::min(i + 1, 10)), 1e-12);
    }
  }
}

TEST(Oracle, SinkTokensStayInTheWindowAndPrefixesBeforeTheDiagonal) {
  Case sink("dtype=f32 q_len=6 head_dim=4 window=1,0 sink_tokens=1");
  equal_weights(sink);
  // Row i sees 0, i-1, i.
  expect_near(first_channel(oracle(sink)), {0, .5, 1, 5 / 3., 7 / 3., 3});

  Case prefix("dtype=f32 batch=2 q_len=4 head_dim=4 causal prefix_len=3,0");
  equal_weights(prefix);
  expect_near(first_channel(oracle(prefix)), {1, 1, 1, 1.5, 0, .5, 1, 1.5});
}

TEST(Oracle, DiagonalFollowsAlignmentLengthsAndOffset) {
  const auto run = [](const std::string& options) {
    Case c("dtype=f32 q_len=5 kv_len=2 head_dim=4 causal " + options);
    c.fill("q", 0);
    c.fill("v", [](const int64_t* i) { return i[2] == 0 ? 3.0 : 5.0; });
    return oracle(c);
  };
  expect_near(first_channel(run("")), {0, 0, 0, 3, 4});
  expect_near(run("").lse, {-kInf, -kInf, -kInf, 0, std::log(2)});
  expect_near(first_channel(run("align=top_left")), {3, 4, 4, 4, 4});
  expect_near(first_channel(run("diagonal_offset=-1")), {0, 3, 4, 4, 4});
  // Effective lengths: row 2 is the last in use, key 0 the last.
  expect_near(first_channel(run("seqused_q=3 seqused_kv=1")), {0, 0, 3, 0, 0});
}

TEST(Oracle, LengthsHideWhatLiesPastThem) {
  Case c("dtype=f32 batch=2 q_len=3 kv_len=3 head_dim=64 seqused_kv=1,3");
  c.fill("q", .5);
  for (const double poison : {kNaN, kInf, 1e30}) {
    const auto with_poison = [&](double valid, int64_t b, int64_t key) {
      return b == 0 && key >= 1 ? poison : valid;
    };
    c.fill("k", [&](const int64_t* i) { return with_poison(.5, i[0], i[2]); });
    c.fill("v", [&](const int64_t* i) {
      return with_poison(static_cast<double>(10 * i[0] + i[2]), i[0], i[2]);
    });
    const Forward f = oracle(c);
    expect_near(first_channel(f), {0, 0, 0, 11, 11, 11});
    expect_near(f.lse, {2, 2, 2, 2 + std::log(3), 2 + std::log(3), 2 + std::log(3)});
  }
}

TEST(Oracle, ZeroLengths) {
  Case no_keys("dtype=f32 batch=2 q_heads=4 q_len=3 kv_len=0 head_dim=64 causal");
  const Forward f = oracle(no_keys);
  for (const double out : f.out) EXPECT_EQ(out, 0);
  for (const double lse : f.lse) EXPECT_EQ(lse, -kInf);
  EXPECT_TRUE(oracle(Case("dtype=f32 batch=2 q_len=0 kv_len=3 head_dim=4")).out.empty());
  EXPECT_TRUE(oracle(Case("dtype=f32 batch=0 q_len=3 kv_len=3 head_dim=4")).lse.empty());
}

TEST(Oracle, SegmentsMeetOnlyTheirOwn) {
  Case c("dtype=f32 q_len=3 kv_len=4 head_dim=4 segments=2");
  equal_weights(c);
  const int q_ids[] = {7, 8, 9}, kv_ids[] = {7, 7, 8, 5};
  c.fill("segment_ids_q", [&](const int64_t* i) { return q_ids[i[1]]; });
  c.fill("segment_ids_kv", [&](const int64_t* i) { return kv_ids[i[1]]; });
  const Forward f = oracle(c);
  expect_near(first_channel(f), {.5, 2, 0});
  expect_near(f.lse, {std::log(2), 0, -kInf});
}

TEST(Oracle, BlockSelectionIsASet) {
  // Rows in blocks of 2, keys in blocks of 3: {0,1,2}, {3,4,5}, {6}.
  Case c("dtype=f32 q_len=6 kv_len=7 head_dim=4 block_size=2,3");
  equal_weights(c);
  ASSERT_EQ(c.problem().block_index.shape[2], 3);
  const int64_t width = c.problem().block_index.shape[3];
  ASSERT_GE(width, 3);
  const int lists[3][3] = {{2, 0, 2}, {-1, 1, -5}, {-1, -1, -1}};
  c.fill("block_index", [&](const int64_t* i) { return i[3] < 3 ? lists[i[2]][i[3]] : -1.0; });
  const Forward f = oracle(c);
  expect_near(first_channel(f), {2.25, 2.25, 4, 4, 0, 0});
  EXPECT_EQ(f.row_keys, (std::vector<int64_t>{4, 4, 3, 3, 0, 0}));
}

TEST(Oracle, SeesWhatTheTestMachineryCallsVisible) {
  // Case::visible() was written from the same page by someone else.
  for (const char* text : {
           "batch=2 q_heads=4 kv_heads=2 q_len=9 kv_len=13 causal window=4,-1 sink_tokens=2",
           "batch=3 q_len=8 kv_len=8 seqused_q seqused_kv window=2,1 align=top_left",
           "batch=3 q_len=8 kv_len=11 diagonal_offset prefix_len causal",
           "batch=2 q_heads=2 q_len=9 kv_len=12 segments=3 mask=b1qk fill=hostile bias=1hqk",
           "batch=2 q_heads=4 kv_heads=2 q_len=9 kv_len=12 block_size=2,5 block_heads=kv causal",
           "batch=4 q_heads=2 q_len=9 kv_len=12 packed window=3,2 segments=2 seqused_kv",
           "batch=4 q_heads=4 kv_heads=2 q_len=9 kv_len=7 packed block_size=4,2 block_heads=q",
           "batch=3 q_heads=2 q_len=6 kv_len=9 packed mask=bhqk bias=b11k fill=hostile causal",
       }) {
    const Case c(std::string("dtype=f32 head_dim=2 ") + text);
    const Forward f = oracle(c);
    const int64_t heads = c.spec().q_heads, rows = static_cast<int64_t>(f.lse.size());
    uint64_t pairs = 0;
    for (int64_t b = 0; b < c.spec().batch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < c.q_used(b); ++i) {
          int64_t keys = 0;
          for (int64_t j = 0; j < c.kv_used(b); ++j) keys += c.visible(b, h, i, j);
          const int64_t row = c.spec().packed ? h * (rows / heads) + c.q_start(b) + i
                                              : (b * heads + h) * c.spec().q_len + i;
          EXPECT_EQ(f.row_keys[static_cast<size_t>(row)], keys)
              << text << ": " << b << ", " << h << ", " << i;
          pairs += static_cast<uint64_t>(keys);
        }
      }
    }
    EXPECT_GT(pairs, 0u) << text;
    EXPECT_EQ(f.visible_pairs, pairs) << text;
  }
}

TEST(Oracle, BiasBroadcastsOverAnyDimension) {
  for (const char* shape : {"b11k", "bh1k", "b1qk", "bhqk"}) {
    Case c("dtype=f32 batch=2 q_heads=3 q_len=2 kv_len=4 head_dim=4 bias=" + std::string(shape));
    c.fill("q", 0);
    c.fill("v", [](const int64_t* i) { return static_cast<double>(10 * i[0] + i[2]); });
    c.fill("bias", [](const int64_t* i) { return i[3] == i[0] + 1 ? 0 : -kInf; });
    expect_near(first_channel(oracle(c)), {1, 1, 1, 1, 1, 1, 12, 12, 12, 12, 12, 12});
  }
}

TEST(Oracle, GrowingCausalBiasAcrossTiles) {
  for (const int n : {129, 1025}) {
    Case c("dtype=f32 head_dim=4 causal bias=11qk q_len=" + std::to_string(n));
    c.fill("q", 0);
    c.fill("v", [](const int64_t* i) { return i[2] == 0 ? 1.0 : 0.0; });
    c.fill("bias", [](const int64_t* i) { return static_cast<double>(i[2] - i[3]); });
    const Forward f = oracle(c);
    const std::vector<double> out = first_channel(f);
    for (int i = 0; i < n; ++i) {
      EXPECT_NEAR(out[i], (1 - std::exp(-1)) / (1 - std::exp(-(i + 1))), 1e-12);
    }
    EXPECT_NEAR(f.lse.back(), n - 1 + 0.458675, 1e-6);
  }
}

// --------------------------------------------------------------------------------------- scores

TEST(Oracle, SoftcapComesBeforeHiding) {
  for (const char* cap : {"1", "0.1"}) {
    Case c("dtype=f32 q_len=2 head_dim=4 causal softcap=" + std::string(cap));
    c.fill("q", 0);
    c.fill("v", [](const int64_t* i) { return i[2] == 0 ? 3.0 : 5.0; });
    expect_near(first_channel(oracle(c)), {3, 4});
  }
}

TEST(Oracle, SoftcapOfThePublishedCase) {
  Case c("dtype=f32 q_len=1 kv_len=2 head_dim=1 scale=1 softcap=2");
  c.fill("q", 1);
  c.fill("k", [](const int64_t* i) { return i[2] == 0 ? 2.0 : 0.0; });
  c.fill("v", [](const int64_t* i) { return i[2] == 0 ? 1.0 : 0.0; });
  expect_near(oracle(c).out, {.821007}, 1e-6);
  expect_near(oracle(c).lse, {1.720411}, 1e-6);
}

TEST(Oracle, AlibiIsMeasuredAlongTheDiagonal) {
  Case last("dtype=f64 q_len=1 kv_len=4 head_dim=4 alibi");
  Case full("dtype=f64 q_len=4 head_dim=4 alibi causal");
  for (Case* c : {&last, &full}) {
    equal_weights(*c);
    c->fill("alibi_slopes", std::log(2));
    const Forward f = oracle(*c);
    EXPECT_NEAR(first_channel(f).back(), 34 / 15., 1e-12);
    EXPECT_NEAR(f.lse.back(), std::log(15 / 8.), 1e-12);
  }
}

TEST(Oracle, ASinkAddsToTheDenominatorOnce) {
  for (const char* text : {"q_len=1 kv_len=4", "q_len=1 kv_len=300 window=3,0"}) {
    Case c("dtype=f32 q_heads=2 head_dim=4 sink " + std::string(text));
    c.fill("q", 0);
    c.fill("v", 1);
    c.fill("sink", 0);
    const Forward f = oracle(c);
    expect_near(first_channel(f), {.8, .8});
    expect_near(f.lse, {std::log(5), std::log(5)});
  }
  Case only("dtype=f32 q_heads=2 q_len=1 kv_len=0 head_dim=4 sink");
  only.fill("sink", [](const int64_t* i) { return i[0] == 0 ? 1.5 : -kInf; });
  expect_near(first_channel(oracle(only)), {0, 0});
  expect_near(oracle(only).lse, {1.5, -kInf});
}

// --------------------------------------------------------------------------------------- packed

TEST(Oracle, PackedSequencesWithEmptyOnes) {
  Case c(
      "dtype=f32 batch=3 q_heads=9 kv_heads=3 head_dim=64 causal packed q_len=1 kv_len=3 "
      "cu_seqlens_q=0,1,1,2 cu_seqlens_kv=0,3,3,5");
  c.fill("q", 0);
  const double v[] = {1, 2, 3, 10, 20};
  c.fill("v", [&](const int64_t* i) { return v[i[0]]; });
  const Forward f = oracle(c);  // out is [total_q, heads, dim], lse [heads, total_q]
  for (size_t head = 0; head < 9; ++head) {
    EXPECT_NEAR(f.out[head * 64], 2, 1e-12);
    EXPECT_NEAR(f.out[(9 + head) * 64], 15, 1e-12);
    EXPECT_NEAR(f.lse[head * 2], std::log(3), 1e-12);
    EXPECT_NEAR(f.lse[head * 2 + 1], std::log(2), 1e-12);
  }
}

TEST(Oracle, PackedCausalWithMoreQueriesThanKeys) {
  Case c(
      "dtype=f32 batch=3 head_dim=32 causal packed q_len=146 kv_len=1 "
      "cu_seqlens_q=0,76,110,256 cu_seqlens_kv=0,1,2,3");
  c.fill("v", [](const int64_t* i) { return static_cast<double>(i[0] + 1); });
  const Forward f = oracle(c);
  for (size_t row = 0; row < 256; ++row) {
    const double expected = row == 75 ? 1 : row == 109 ? 2 : row == 255 ? 3 : 0;
    EXPECT_EQ(f.out[row * 32], expected) << row;
    EXPECT_EQ(std::isinf(f.lse[row]), expected == 0) << row;
  }
}

TEST(Oracle, PackedRowsPastTheLastSequenceAreUnused) {
  Case c(
      "dtype=f32 batch=2 head_dim=2 packed q_len=8 kv_len=8 cu_seqlens_q=0,1,3 "
      "cu_seqlens_kv=0,2,3 seqused_q=1,1");
  // Totals may be larger than the last start; the string cannot say it, the lengths can.
  const Forward f = oracle(c);
  ASSERT_GE(f.lse.size(), 3u);
  EXPECT_EQ(f.row_used[0], 1);
  EXPECT_EQ(f.row_used[1], 1);
  for (size_t row = 2; row < f.lse.size(); ++row) {
    EXPECT_EQ(f.row_used[row], 0);
    EXPECT_EQ(f.lse[row], -kInf);
    EXPECT_EQ(f.out[2 * row], 0);
  }
}

TEST(Oracle, PackedEqualsPadded) {
  const std::string options = " dtype=f32 q_heads=4 kv_heads=2 head_dim=8 causal window=5,-1 ";
  Case packed(options +
              "batch=2 q_len=7 kv_len=9 packed cu_seqlens_q=0,7,10 cu_seqlens_kv=0,9,13 "
              "bias=1hqk alibi dropout=0.3 seed=11 block_size=2,3");
  Case padded(options + "batch=2 q_len=7 kv_len=9 seqused_q=7,3 seqused_kv=9,4 " +
              "bias=1hqk alibi dropout=0.3 seed=11 block_size=2,3");
  ASSERT_EQ(packed.problem().bias.shape[2], 7);
  ASSERT_EQ(packed.problem().bias.shape[3], 9);
  const auto copy = [&](const char* name, int64_t first) {
    padded.fill(name, [&, name, first](const int64_t* i) {
      const bool q = name[0] == 'q';
      const int64_t length = i[0] == 0 ? (q ? 7 : 9) : (q ? 3 : 4);
      return i[2] < length ? packed.at(name, {i[0] * first + i[2], i[1], i[3]}) : kNaN;
    });
  };
  copy("q", 7);
  copy("k", 9);
  copy("v", 9);
  padded.fill("bias", [&](const int64_t* i) { return packed.at("bias", {0, i[1], i[2], i[3]}); });
  // Blocks of rows: 4 and 2 of the two sequences.
  ASSERT_EQ(packed.problem().block_index.shape[1], 6);
  padded.fill("block_index", [&](const int64_t* i) {
    const int64_t row = i[0] * 4 + i[2];
    return row < 6 ? packed.at("block_index", {0, row, i[3]}) : -1;
  });
  const Forward a = oracle(packed), b = oracle(padded);
  const int64_t lengths[] = {7, 3}, starts[] = {0, 7};
  for (int64_t s = 0; s < 2; ++s) {
    for (int64_t h = 0; h < 4; ++h) {
      for (int64_t i = 0; i < lengths[s]; ++i) {
        const size_t token = static_cast<size_t>(starts[s] + i);
        const size_t dense = static_cast<size_t>((s * 4 + h) * 7 + i);
        EXPECT_EQ(a.lse[static_cast<size_t>(h) * 10 + token], b.lse[dense]);
        for (size_t c = 0; c < 8; ++c) {
          EXPECT_EQ(a.out[(token * 4 + static_cast<size_t>(h)) * 8 + c], b.out[dense * 8 + c]);
        }
      }
    }
  }
  EXPECT_EQ(a.visible_pairs, b.visible_pairs);
}

// --------------------------------------------------------------------------------- NaN and inf

TEST(Oracle, NaNReachesExactlyTheRowsThatSeeIt) {
  Case c("dtype=f32 q_heads=2 q_len=2 kv_len=4 head_dim=4");
  c.fill("q", 0);
  c.fill("k", 0);
  c.fill("v", 1);
  c.set("q", {0, 1, 0, 2}, kNaN);
  expect_near(first_channel(oracle(c)), {1, 1, kNaN, 1});
  expect_near(oracle(c).lse, {std::log(4), std::log(4), kNaN, std::log(4)});

  c.fill("q", 1);
  c.set("k", {0, 0, 0, 3}, kNaN);
  expect_near(first_channel(oracle(c)), {kNaN, kNaN, 1, 1});
}

TEST(Oracle, NonFiniteValuesStayInTheirChannelAndRows) {
  Case c("dtype=f32 q_len=3 kv_len=3 head_dim=4 head_dim_v=3 causal");
  c.fill("q", 0);
  c.fill("v", 1);
  c.set("v", {0, 0, 1, 0}, kNaN);
  c.set("v", {0, 0, 1, 1}, kInf);
  c.set("v", {0, 0, 2, 1}, -kInf);
  c.set("v", {0, 0, 2, 2}, -kInf);
  const Forward f = oracle(c);
  expect_near(f.out, {1, 1, 1, kNaN, kInf, 1, kNaN, kNaN, -kInf});
  expect_near(f.lse, {0, std::log(2), std::log(3)});
}

TEST(Oracle, InfiniteScores) {
  Case c("dtype=f32 q_len=3 kv_len=2 head_dim=1 scale=1");
  c.fill("v", [](const int64_t* i) { return static_cast<double>(i[2] + 1); });
  // Row 0: one score of -inf, which counts as visible. Row 1: largest is inf. Row 2: all are -inf.
  c.fill("q", [](const int64_t* i) { return i[2] == 0 ? 1 : i[2] == 1 ? -1 : 1; });
  c.set("k", {0, 0, 0, 0}, -kInf);
  c.set("k", {0, 0, 1, 0}, 0);
  Forward f = oracle(c);
  expect_near(f.out, {2, kNaN, 2});
  expect_near(f.lse, {0, kNaN, 0});
  EXPECT_EQ(f.row_keys, (std::vector<int64_t>{2, 2, 2}));
  c.set("k", {0, 0, 1, 0}, -kInf);
  f = oracle(c);
  expect_near(f.out, {kNaN, kNaN, kNaN});
}

TEST(Oracle, ABiasIsNotReadAsAMaskUnlessMinusInfinity) {
  Case c("dtype=f32 q_len=1 kv_len=3 head_dim=1 bias=11qk");
  equal_weights(c);
  const auto with = [&](double a, double b, double d) {
    c.set("bias", {0, 0, 0, 0}, a);
    c.set("bias", {0, 0, 0, 1}, b);
    c.set("bias", {0, 0, 0, 2}, d);
    return oracle(c).out[0];
  };
  EXPECT_TRUE(std::isnan(with(kInf, 0, 0)));
  EXPECT_TRUE(std::isnan(with(kNaN, 0, 0)));
  c.set("k", {0, 0, 0, 0}, kNaN);
  EXPECT_EQ(with(-kInf, 0, 0), 1.5);
}

TEST(Oracle, MarksRowsBeyondTheRangeOfTheContract) {
  Case c("dtype=f32 q_len=2 kv_len=1 head_dim=1 scale=1");
  c.fill("q", [](const int64_t* i) { return i[2] == 0 ? 0x1p60 : 0x1p63; });
  c.fill("k", 0x1p63);
  const Forward f = oracle(c);
  EXPECT_EQ(f.row_beyond, (std::vector<unsigned char>{0, 1}));
}

// -------------------------------------------------------------------------------------- dropout

TEST(Oracle, DropoutFollowsThePhiloxCounter) {
  Case c(
      "dtype=f64 batch=2 q_heads=2 q_len=5 kv_len=9 head_dim=1 head_dim_v=9 dropout=0.25 "
      "seed=81985529216486895 offset=1311768467463790320");
  c.fill("q", 0);
  c.fill("v", [](const int64_t* i) { return i[2] == i[3] ? 9.0 : 0.0; });  // out = 9 p keep / (1-p)
  const Forward f = oracle(c);
  constexpr uint64_t kSeed = 0x0123456789abcdef, kOffset = 0x123456789abcdef0;
  int kept = 0;
  for (uint32_t batch_head = 0; batch_head < 4; ++batch_head) {
    for (uint32_t i = 0; i < 5; ++i) {
      for (uint32_t j = 0; j < 9; ++j) {
        const auto words = reference::philox(
            {j / 4, i, batch_head, static_cast<uint32_t>(kOffset)},
            {static_cast<uint32_t>(kSeed),
             static_cast<uint32_t>(kSeed >> 32) ^ static_cast<uint32_t>(kOffset >> 32)});
        const bool keep = words[j % 4] >= 0x40000000u;
        EXPECT_NEAR(f.out[(batch_head * 5 + i) * 9 + j], keep ? 4 / 3. : 0, 1e-15);
        kept += keep;
      }
    }
  }
  EXPECT_NEAR(kept / 180., 0.75, 0.1);
  for (const double lse : f.lse) EXPECT_NEAR(lse, std::log(9), 1e-14);
}

TEST(Oracle, DropoutOfOneDropsEverything) {
  const Forward f = oracle(Case("dtype=f32 q_len=3 kv_len=5 head_dim=4 dropout=1 seed=3"));
  for (const double out : f.out) EXPECT_EQ(out, 0);
  for (const double lse : f.lse) EXPECT_TRUE(std::isfinite(lse));
}

TEST(Oracle, DropoutSeedsMayComeByPointer) {
  const std::string text = "dtype=f32 q_len=4 kv_len=64 head_dim=4 dropout=0.5 ";
  Case by_value(text + "seed=5 offset=6"), by_pointer(text), other(text + "seed=5 offset=7");
  const uint64_t seed = 5, offset = 6;
  by_pointer.args().seed_pointer = &seed;
  by_pointer.args().offset_pointer = &offset;
  EXPECT_EQ(oracle(by_value).out, oracle(by_pointer).out);
  EXPECT_NE(oracle(by_value).out, oracle(other).out);
}

// ---------------------------------------------------------------------------------------- merge

TEST(Oracle, MergeOfPartsIsTheWhole) {
  Case whole("dtype=f64 q_len=1 kv_len=8 head_dim=1 head_dim_v=1");
  whole.fill("q", 0);
  whole.fill("v", [](const int64_t* i) { return i[2] < 5 ? 1.0 : 9.0; });
  expect_near(oracle(whole).out, {4});

  Case parts("direction=merge partials=2 dtype=f64 q_len=1 head_dim_v=1 head_dim=1");
  parts.fill("partial_out", [](const int64_t* i) { return i[0] == 0 ? 1.0 : 9.0; });
  parts.fill("partial_lse", [](const int64_t* i) { return std::log(i[0] == 0 ? 5 : 3); });
  const Forward f = reference::merge(parts.problem(), parts.args());
  expect_near(f.out, {4});
  expect_near(f.lse, {std::log(8)});
}

TEST(Oracle, MergeIgnoresEmptyParts) {
  for (const char* count : {"0", "1", "2", "5"}) {
    Case c("direction=merge dtype=f32 q_len=3 head_dim=64 partials=" + std::string(count));
    if (c.has("partial_out")) c.fill("partial_out", kNaN);
    c.fill("partial_lse", -kInf);
    const Forward f = reference::merge(c.problem(), c.args());
    ASSERT_EQ(f.out.size(), 3u * 64u);
    for (const double out : f.out) EXPECT_EQ(out, 0);
    for (const double lse : f.lse) EXPECT_EQ(lse, -kInf);
  }
  Case c("direction=merge dtype=f32 q_len=2 head_dim=2 partials=3");
  c.fill("partial_out", [](const int64_t* i) { return i[0] == 1 ? 7 : kNaN; });
  c.fill("partial_lse", [](const int64_t* i) {
    return i[0] == 1 ? 2 : i[0] == 2 && i[3] == 1 ? kNaN : -kInf;
  });
  const Forward f = reference::merge(c.problem(), c.args());
  expect_near(f.out, {7, 7, kNaN, kNaN});
  expect_near(f.lse, {2, kNaN});
}

}  // namespace
}  // namespace runmax
