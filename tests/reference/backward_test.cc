// The gradient oracle against finite differences of the forward oracle, and against closed forms.
#include "reference/backward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "reference/oracle.h"
#include "reference/plain.h"
#include "testing/case.h"
#include "testing/gates.h"
#include "testing/run.h"

namespace runmax {
namespace {

using reference::Backward;
using reference::Gradient;
using reference::Reach;
using testing::Case;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Place {
  const char* input;
  const char* name;
  Gradient Backward::*gradient;
};
constexpr Place kPlaces[] = {{"q", "d_q", &Backward::d_q},
                             {"k", "d_k", &Backward::d_k},
                             {"v", "d_v", &Backward::d_v},
                             {"bias", "d_bias", &Backward::d_bias},
                             {"sink", "d_sink", &Backward::d_sink},
                             {"alibi_slopes", "d_alibi_slopes", &Backward::d_alibi_slopes},
                             {"partial_out", "d_partial_out", &Backward::d_partial_out},
                             {"partial_lse", "d_partial_lse", &Backward::d_partial_lse}};

// ---------------------------------------------------------------------------- finite differences

// sum d_out out + sum d_lse lse, over what is finite.
long double loss(const Case& c) {
  const runmax_problem forward = testing::forward_of(c.problem());
  const reference::Forward f = testing::expected(forward, c.args());
  long double sum = 0;
  if (c.has("d_out")) {
    const std::vector<double> d_out = c.values("d_out");
    for (size_t n = 0; n < f.out.size(); ++n) {
      if (f.out[n] != 0) sum += static_cast<long double>(f.out[n]) * d_out[n];
    }
  }
  if (c.has("d_lse")) {
    const std::vector<double> d_lse = c.values("d_lse");
    for (size_t n = 0; n < f.lse.size(); ++n) {
      if (std::isfinite(f.lse[n]))
        sum += (static_cast<long double>(f.lse[n]) + f.lse_lo[n]) * d_lse[n];
    }
  }
  return sum;
}

std::vector<std::vector<int64_t>> indices(const runmax_tensor& tensor) {
  std::vector<std::vector<int64_t>> all;
  testing::for_each_element(
      tensor, [&](const int64_t* i, int64_t) { all.emplace_back(i, i + tensor.rank); });
  return all;
}

double& element(Case& c, const char* name, const std::vector<int64_t>& index) {
  const testing::Buffer& b = c.buffer(name);
  int64_t offset = 0;
  for (size_t d = 0; d < index.size(); ++d) offset += index[d] * b.tensor.stride[d];
  return static_cast<double*>(b.pointer())[offset];  // F64 cases only
}

// Every element of every input, differentiated by four points.
void check_by_differences(const std::string& text) {
  SCOPED_TRACE(text);
  Case c("dtype=f64 " + text);
  const Backward oracle = testing::expected_gradients(c.problem(), c.args());
  int64_t differentiated = 0;
  for (const Place& place : kPlaces) {
    if (!c.has(place.name)) continue;
    const Gradient& gradient = oracle.*place.gradient;
    const std::vector<std::vector<int64_t>> all = indices(c.buffer(place.input).tensor);
    ASSERT_EQ(gradient.value.size(), all.size()) << place.name;
    for (size_t n = 0; n < all.size(); ++n) {
      double& x = element(c, place.input, all[n]);
      const double middle = x;
      if (!std::isfinite(middle)) {  // poison that nothing reads, or a bias or part that hides
        EXPECT_EQ(gradient.value[n], 0) << place.name << " " << n;
        EXPECT_LE(gradient.reach[n], Reach::kNothing) << place.name << " " << n;
        continue;
      }
      constexpr double kStep = 0x1p-10;
      const auto at = [&](int steps) {
        x = middle + steps * kStep;
        const long double value = loss(c);
        x = middle;
        return value;
      };
      const auto slope =
          static_cast<double>((8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * kStep));
      const double tolerance = 1e-8 * (1 + std::fabs(slope));
      ASSERT_NEAR(gradient.value[n], slope, tolerance) << place.name << " element " << n;
      if (gradient.reach[n] <= Reach::kNothing) {
        EXPECT_EQ(slope, 0) << place.name << " element " << n;
      }
      EXPECT_TRUE(std::isfinite(gradient.error[n]));
      ++differentiated;
    }
  }
  EXPECT_GT(differentiated, 0);
}

TEST(BackwardOracle, MatchesFiniteDifferencesForEveryFeature) {
  const char* shape =
      "direction=backward q_heads=2 kv_heads=1 q_len=3 kv_len=4 head_dim=2 head_dim_v=3 ";
  for (const char* words : {"",
                            "upstream=d_out",
                            "upstream=d_lse",
                            "causal",
                            "causal align=top_left",
                            "window=1,0",
                            "window=0,1 sink_tokens=1",
                            "scale=-0.7",
                            "scale=0",
                            "softcap=0.8",
                            "softcap=30 causal",
                            "bias",
                            "bias=1hqk",
                            "bias=11q1",
                            "bias=111k",
                            "bias=1111",
                            "bias=b1qk fill=hostile",
                            "mask",
                            "alibi",
                            "alibi=bh",
                            "sink",
                            "sink upstream=d_lse",
                            "seqused_q=2",
                            "seqused_kv=3",
                            "seqused_q=0 sink",
                            "seqused_kv=0 sink",
                            "diagonal_offset=-1 causal sink",
                            "prefix_len=2 causal",
                            "segments=2",
                            "block_size=2,2",
                            "dropout=0.4 seed=5 offset=3",
                            "dropout=1 seed=5",
                            "layout=strided",
                            "layout=negative bias",
                            "lse_lo",
                            "softcap=1.5 bias=1hqk alibi sink mask dropout=0.3 seed=9 causal"}) {
    check_by_differences(shape + std::string(words));
  }
}

TEST(BackwardOracle, MatchesFiniteDifferencesInBatchesAndPacked) {
  for (const char* words :
       {"batch=2 q_heads=2 q_len=2 kv_len=3 head_dim=2 bias=11qk alibi=h sink",
        "batch=2 q_heads=2 q_len=2 kv_len=3 head_dim=2 bias=b111 alibi=bh seqused_kv=1,3",
        "batch=2 q_heads=2 q_len=2 kv_len=3 head_dim=2 bias=1h1k",
        "packed batch=3 q_heads=2 kv_heads=1 q_len=3 kv_len=4 head_dim=2 cu_seqlens_q=0,2,2,5 "
        "cu_seqlens_kv=0,3,5,6 causal bias=1hqk alibi sink",
        "packed batch=2 q_heads=2 q_len=3 kv_len=3 head_dim=2 seqused_q seqused_kv dropout=0.3 "
        "seed=4 softcap=2"}) {
    check_by_differences("direction=backward " + std::string(words));
  }
}

TEST(BackwardOracle, MatchesFiniteDifferencesForMerge) {
  for (const char* words : {"partials=1", "partials=3 q_heads=2", "partials=4 upstream=d_out",
                            "partials=3 upstream=d_lse", "packed batch=2 q_heads=2 partials=3"}) {
    check_by_differences("direction=merge_backward q_len=3 head_dim=2 " + std::string(words));
  }
}

// --------------------------------------------------------------------------------- closed forms

Backward oracle(const Case& c) { return testing::expected_gradients(c.problem(), c.args()); }

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 double tolerance = 1e-6) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t n = 0; n < actual.size(); ++n) {
    EXPECT_NEAR(actual[n], expected[n], tolerance * std::fabs(expected[n])) << "at " << n;
  }
}

// By token, in every channel of one.
void tokens(Case& c, const char* name, const std::vector<double>& values) {
  c.fill(name, [&](const int64_t* i) { return values[static_cast<size_t>(i[2])]; });
}

TEST(BackwardOracle, B01RowsThatAreMaskedOut) {
  Case c("direction=backward upstream=d_out q_len=3 kv_len=4 head_dim=8 head_dim_v=1 mask=11qk");
  c.fill("q", 0);
  c.fill("k", 0);
  tokens(c, "v", {1, 2, 3, 4});
  c.fill("d_out", 1);
  c.fill("mask",
         [](const int64_t* i) { return i[2] == 2 || (i[2] == 0 && i[3] == 0) ? 1.0 : 0.0; });
  const Backward b = oracle(c);
  expect_near(b.d_v.value, {1.25, .25, .25, .25}, 1e-15);
  for (double x : b.d_q.value) EXPECT_EQ(x, 0);
  for (double x : b.d_k.value) EXPECT_EQ(x, 0);
  for (size_t n = 8; n < 16; ++n) EXPECT_EQ(b.d_q.reach[n], Reach::kNothing);
}

TEST(BackwardOracle, B33GradientOfLseAlone) {
  Case c("direction=backward upstream=d_lse q_len=2 head_dim=1 scale=1");
  tokens(c, "q", {1, 2});
  tokens(c, "k", {0, 3});
  c.fill("v", 0);
  c.fill("d_lse", 1);
  const Backward b = oracle(c);
  expect_near(b.d_q.value, {2.857722, 2.992582});
  expect_near(b.d_k.value, {.052371, 2.947629}, 1e-5);
  for (double x : b.d_v.value) EXPECT_EQ(x, 0);
}

TEST(BackwardOracle, B43GradientOfABias) {
  for (const char* shape : {"111k", "11qk"}) {
    Case c(std::string("direction=backward upstream=d_out q_len=3 kv_len=2 head_dim=1 bias=") +
           shape);
    c.fill("q", 0);
    c.fill("bias", 0);
    tokens(c, "v", {0, 1});
    c.fill("d_out", 1);
    const Backward b = oracle(c);
    if (shape[2] == '1') {
      expect_near(b.d_bias.value, {-.75, .75}, 1e-15);
    } else {
      expect_near(b.d_bias.value, {-.25, .25, -.25, .25, -.25, .25}, 1e-15);
    }
  }
}

TEST(BackwardOracle, B51SharedHeadsAddUp) {
  Case c("direction=backward upstream=d_out q_heads=4 kv_heads=1 q_len=2 head_dim=1 scale=1");
  c.fill("q", 1);
  c.fill("k", 0);
  tokens(c, "v", {0, 1});
  c.fill("d_out", [](const int64_t* i) { return static_cast<double>(i[1] + 1); });
  const Backward b = oracle(c);
  expect_near(b.d_v.value, {10, 10}, 1e-15);
  expect_near(b.d_k.value, {-5, 5}, 1e-15);
  for (double x : b.d_q.value) EXPECT_EQ(x, 0);
}

TEST(BackwardOracle, B63GradientOfTheSink) {
  Case c("direction=backward upstream=d_out q_heads=2 q_len=4 kv_len=3 head_dim=1 sink");
  c.fill("q", 0);
  c.fill("k", 0);
  c.fill("v", 1);
  c.fill("sink", 0);
  c.fill("d_out", 1);
  const Backward b = oracle(c);
  expect_near(b.d_sink.value, {-.75, -.75}, 1e-15);
  expect_near(b.d_v.value, {1, 1, 1, 1, 1, 1}, 1e-15);
  for (double x : b.d_q.value) EXPECT_EQ(x, 0);
  for (double x : b.d_k.value) EXPECT_EQ(x, 0);
}

TEST(BackwardOracle, B67Softcap) {
  Case c("direction=backward upstream=d_out q_len=1 kv_len=2 head_dim=1 scale=1 softcap=2");
  c.fill("q", 1);
  tokens(c, "k", {2, 0});
  tokens(c, "v", {1, 0});
  c.fill("d_out", 1);
  const Backward b = oracle(c);
  expect_near(b.d_q.value, {.123434}, 1e-5);
  expect_near(b.d_k.value, {.061717, -.146954}, 1e-5);
}

TEST(BackwardOracle, B79ScaleOfZero) {
  Case c("direction=backward upstream=d_out q_len=3 head_dim=1 causal scale=0");
  c.fill("q", 5);
  c.fill("k", 1e4);
  tokens(c, "v", {3, 6, 9});
  c.fill("d_out", 1);
  const Backward b = oracle(c);
  expect_near(b.d_v.value, {11. / 6, 5. / 6, 1. / 3}, 1e-15);
  for (double x : b.d_q.value) EXPECT_EQ(x, 0);
  for (double x : b.d_k.value) EXPECT_EQ(x, 0);
}

TEST(BackwardOracle, B81GrowingBias) {
  for (int64_t length : {129, 1025}) {
    Case c("direction=backward upstream=d_out head_dim=1 causal bias=11qk q_len=" +
           std::to_string(length));
    c.fill("q", 0);
    c.fill("bias", [](const int64_t* i) { return static_cast<double>(i[2] - i[3]); });
    c.fill("v", [](const int64_t* i) { return i[2] == 0 ? 1.0 : 0.0; });
    c.fill("d_out", 1);
    const Backward b = oracle(c);
    if (length == 129) {
      EXPECT_NEAR(b.d_v.value[0], 82.062055, 1e-6);
    }
    for (const Gradient* g : {&b.d_q, &b.d_k, &b.d_v, &b.d_bias}) {
      for (double x : g->value) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST(BackwardOracle, B83RealRowsOfPaddedSequences) {
  Case c(
      "direction=backward upstream=d_out packed batch=2 cu_seqlens_q=0,12,20 cu_seqlens_kv=0,12,20 "
      "q_len=12 kv_len=12 seqused_q=9,8 seqused_kv=9,8 head_dim=1 causal");
  for (int64_t t = 0; t < 20; ++t) {
    if (t >= 9 && t < 12) continue;  // padding keeps its poison
    c.set("q", {t, 0, 0}, 0);
    c.set("k", {t, 0, 0}, 1);
    c.set("v", {t, 0, 0}, static_cast<double>(t < 9 ? t : t - 12));
    c.set("d_out", {t, 0, 0}, 1);
  }
  const Backward b = oracle(c);
  for (int64_t j = 0; j < 20; ++j) {
    double wanted = 0;
    for (int64_t m = (j < 12 ? j : j - 12) + 1; m <= (j < 12 ? 9 : 8); ++m)
      wanted += 1. / static_cast<double>(m);
    const auto n = static_cast<size_t>(j);
    EXPECT_NEAR(b.d_v.value[n], wanted, 1e-14) << j;
    EXPECT_EQ(b.d_v.reach[n], j >= 9 && j < 12 ? Reach::kUnused : Reach::kPairs) << j;
  }
  EXPECT_NEAR(b.d_v.value[0], 2.828968, 1e-6);
  EXPECT_NEAR(b.d_v.value[12], 2.717857, 1e-6);
}

TEST(BackwardOracle, B85DropoutKeepsTheForwardsPairs) {
  Case c("direction=backward upstream=d_out q_len=64 head_dim=64 dropout=0.5 seed=42");
  const auto identity = [](const int64_t* i) { return i[2] == i[3] ? 1.0 : 0.0; };
  c.fill("q", 0);
  c.fill("v", identity);
  c.fill("d_out", identity);
  const reference::Forward f = testing::expected(testing::forward_of(c.problem()), c.args());
  const Backward b = oracle(c);
  // out[i, j] is the weight of pair (i, j), and so is d_v[j, i].
  for (size_t i = 0; i < 64; ++i) {
    for (size_t j = 0; j < 64; ++j) EXPECT_EQ(b.d_v.value[j * 64 + i], f.out[i * 64 + j]);
  }
}

TEST(BackwardOracle, SinkOnlyRowsGiveTheirDLseToTheSink) {
  Case c("direction=backward q_heads=2 q_len=3 kv_len=2 head_dim=2 sink causal align=bottom_right");
  c.fill("d_lse", [](const int64_t* i) { return static_cast<double>(10 * i[1] + i[2] + 1); });
  c.fill("sink", [](const int64_t* i) { return i[0] == 0 ? -kInf : 3.0; });
  c.set("d_out", {0, 0, 0, 0}, kNaN);  // row 0 sees nothing
  const Backward b = oracle(c);
  EXPECT_EQ(b.d_sink.value[0], 1);  // the other rows give -inf's share, 0
  EXPECT_TRUE(std::isfinite(b.d_sink.value[1]));
  EXPECT_EQ(b.d_q.value[0], 0);
  EXPECT_EQ(b.d_q.reach[0], Reach::kNothing);
}

// ---------------------------------------------------------------------------------- not finite

// Which elements of a gradient are not finite, as a string of digits.
std::string pattern(const Gradient& gradient) {
  std::string text;
  for (double x : gradient.value) text += std::isfinite(x) ? '.' : 'X';
  return text;
}

TEST(BackwardOracle, NanInARowReachesItAndWhatItSees) {
  for (const char* name : {"q", "k"}) {
    Case c("direction=backward q_len=3 head_dim=2 causal sink alibi");
    c.set(name, {0, 0, 1, 0}, kNaN);
    const Backward b = oracle(c);
    const bool in_q = name[0] == 'q';
    EXPECT_EQ(pattern(b.d_q), in_q ? "..XX.." : "..XXXX");
    EXPECT_EQ(pattern(b.d_k), in_q ? "XXXX.." : "XXXXXX");
    EXPECT_EQ(pattern(b.d_v), in_q ? "XXXX.." : "XXXXXX");
    EXPECT_EQ(pattern(b.d_sink), "X");
    EXPECT_EQ(pattern(b.d_alibi_slopes), "X");
  }
}

TEST(BackwardOracle, NotFiniteValuesAndUpstreamGradients) {
  for (double bad : {kNaN, kInf, -kInf}) {
    Case v("direction=backward q_len=3 head_dim=2 causal bias=11qk dropout=0.5 seed=3");
    v.set("v", {0, 0, 2, 1}, bad);  // row 2 alone sees it
    Backward b = oracle(v);
    EXPECT_EQ(pattern(b.d_q), "....XX");
    EXPECT_EQ(pattern(b.d_k), "XXXXXX");
    EXPECT_EQ(pattern(b.d_v), "......");
    EXPECT_EQ(pattern(b.d_bias), "......XXX");

    Case d_out("direction=backward q_len=3 head_dim=2 causal");
    d_out.set("d_out", {0, 0, 1, 0}, bad);
    b = oracle(d_out);
    EXPECT_EQ(pattern(b.d_q), "..XX..");
    EXPECT_EQ(pattern(b.d_k), "XXXX..");
    EXPECT_EQ(pattern(b.d_v), "X.X...");

    Case d_lse("direction=backward q_len=3 head_dim=2 causal");
    d_lse.set("d_lse", {0, 0, 1}, bad);
    b = oracle(d_lse);
    EXPECT_EQ(pattern(b.d_q), "..XX..");
    EXPECT_EQ(pattern(b.d_k), "XXXX..");
    EXPECT_EQ(pattern(b.d_v), "......");

    Case lse_only("direction=backward upstream=d_lse q_len=3 head_dim=2 causal");
    lse_only.set("v", {0, 0, 1, 0}, bad);  // without d_out no gradient reads it
    b = oracle(lse_only);
    for (const Gradient* g : {&b.d_q, &b.d_k, &b.d_v}) EXPECT_EQ(pattern(*g), "......");
  }
}

TEST(BackwardOracle, InfiniteKeysOfFiniteRows) {
  Case c("direction=backward q_len=1 kv_len=2 head_dim=2");
  c.fill("q", 1);
  c.fill("k", 1);
  c.set("k", {0, 0, 1, 0}, -kInf);  // a score of -inf: its weight is 0
  const Backward b = oracle(c);
  EXPECT_EQ(pattern(b.d_q), "X.");
  EXPECT_EQ(pattern(b.d_k), "....");
  EXPECT_EQ(pattern(b.d_v), "....");
}

TEST(BackwardOracle, MergeIgnoresEmptyPartsAndSpreadsNan) {
  Case c("direction=merge_backward partials=3 q_len=2 head_dim=1");
  c.fill("partial_lse", [](const int64_t* i) {
    return i[0] == 1 ? -kInf : i[3] == 1 ? kNaN : 0.5;
  });
  c.fill("partial_out", [](const int64_t* i) { return i[0] == 1 ? kNaN : 2.0 * i[0]; });
  c.fill("d_out", 1);
  c.fill("d_lse", 3);
  const Backward b = oracle(c);
  EXPECT_EQ(pattern(b.d_partial_out), ".X...X");
  EXPECT_EQ(pattern(b.d_partial_lse), ".X...X");
  expect_near({b.d_partial_out.value[0], b.d_partial_out.value[4]}, {.5, .5}, 1e-15);
  // The parts' outs are 0 and 4, their mean 2.
  expect_near({b.d_partial_lse.value[0], b.d_partial_lse.value[4]}, {.5, 2.5}, 1e-15);
  EXPECT_EQ(b.d_partial_out.reach[2], Reach::kNothing);
  EXPECT_EQ(b.d_partial_lse.value[2], 0);
}

// ------------------------------------------------------------------- what is asked for, and gates

TEST(BackwardOracle, ComputesWhatIsAskedForAndTheSameAlone) {
  const std::string words =
      "direction=backward batch=2 q_heads=4 kv_heads=2 q_len=9 kv_len=13 "
      "head_dim=5 causal bias=1hqk sink alibi softcap=3 dropout=0.2 seed=1 ";
  const Backward all = oracle(Case(words));
  for (const Place& place : kPlaces) {
    if ((all.*place.gradient).value.empty()) continue;
    const Backward one = oracle(Case(words + "gradients=" + place.name));
    for (const Place& other : kPlaces) {
      if (&other == &place) {
        EXPECT_EQ((one.*place.gradient).value, (all.*place.gradient).value) << place.name;
        EXPECT_EQ((one.*place.gradient).error, (all.*place.gradient).error) << place.name;
      } else {
        EXPECT_TRUE((one.*other.gradient).value.empty()) << other.name;
      }
    }
  }
}

TEST(BackwardOracle, ChosenRowsHaveTheSameDQ) {
  const Case c("direction=backward q_heads=2 q_len=40 kv_len=50 head_dim=6 causal");
  const Backward all = oracle(c),
                 some = testing::expected_gradients(c.problem(), c.args(), {3, 71});
  for (size_t n = 0; n < all.d_q.value.size(); ++n) {
    const bool chosen = n / 6 == 3 || n / 6 == 71;
    EXPECT_EQ(some.d_q.reach[n] != Reach::kSkipped, chosen);
    if (chosen) {
      EXPECT_EQ(some.d_q.value[n], all.d_q.value[n]);
    }
  }
  for (Reach reach : some.d_k.reach) EXPECT_EQ(reach, Reach::kSkipped);
}

TEST(BackwardOracle, ThePlainComputationIsWithinItsGates) {
  for (const std::string dtype : {"f64", "f32", "bf16", "f16"}) {
    for (const char* words :
         {"q_heads=4 kv_heads=2 q_len=60 kv_len=90 head_dim=32 head_dim_v=24 causal",
          "q_len=100 kv_len=70 head_dim=16 softcap=5 alibi sink bias=1hqk",
          "batch=2 q_heads=2 q_len=30 kv_len=40 head_dim=8 dropout=0.3 seed=2 mask bias=11qk "
          "scale=-1",
          "packed batch=3 q_heads=2 q_len=40 kv_len=40 head_dim=8 causal seqused_q seqused_kv "
          "sink"}) {
      // Rows of many small weights: d_s in F16 is subnormal there, and plain does not scale it.
      if (dtype == "f16" && std::string(words).find("bias") != std::string::npos) continue;
      const std::string text = "direction=backward dtype=" + dtype + " " + words;
      Case c(text);
      const Backward expected = oracle(c);
      testing::OutputCopy plain(c.problem(), c.args());
      ASSERT_TRUE(reference::plain_backward(plain.problem, plain.args));
      for (const char* name : testing::gradients_of(c.problem())) {
        const testing::Comparison result =
            testing::compare_gradient(name, plain.problem, plain.args, expected);
        EXPECT_TRUE(result.passed) << text << "\n" << result.message;
        EXPECT_GT(result.compared, 0);
        EXPECT_LE(result.max_ratio, 0.8) << text << " " << name;
      }
    }
  }
}

}  // namespace
}  // namespace runmax
