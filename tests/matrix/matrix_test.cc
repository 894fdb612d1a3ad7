// Every feature with every other, in every type: each cell is a problem that runs on the best
// kernel of this machine and is held against the oracle. The matrix is printed, and
// docs/features.md must show it: RUNMAX_WRITE_FEATURES=FILE writes the page anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "testing/problem_string.h"
#include "testing/run.h"

namespace runmax::testing {
namespace {

struct Feature {
  const char* name;
  const char* words;  // of a problem string; "" asks for nothing
  const char* what;
};

// Words of later features come last in a problem string. Two features that set one word to
// different values (`clash`) have a cell by both values in turn, never none.
constexpr Feature kFeatures[] = {
    {"shared kv heads", "q_heads=4 kv_heads=2", "q_heads a multiple of kv_heads"},
    {"head_dim != head_dim_v", "head_dim_v=20", "values wider or narrower than keys"},
    {"any layout", "layout=strided", "every stride, the last one too"},
    {"packed", "packed", "`cu_seqlens_q`, `cu_seqlens_kv`: sequences end to end"},
    {"seqused_q", "seqused_q", "rows in use of each sequence"},
    {"seqused_kv", "seqused_kv", "keys in use of each sequence"},
    {"causal", "causal", "`RUNMAX_CAUSAL`, `--causal`"},
    {"top_left", "align=top_left", "diagonal through the first row and key"},
    {"diagonal_offset", "diagonal_offset", "a diagonal of one's own per sequence"},
    {"window", "window=40,9", "`window_left`, `window_right`"},
    {"sink_tokens", "sink_tokens=3", "leading keys that the window keeps"},
    {"prefix_len", "prefix_len", "leading keys that every row sees"},
    {"segments", "segments=2", "`segment_ids_q`, `segment_ids_kv`"},
    {"mask", "mask=bhqk", "boolean, any broadcast"},
    {"block selection", "block_size=16,32 block_density=0.5", "`block_index`: lists of key blocks"},
    {"bias", "bias=bhqk", "additive, any broadcast; -inf hides"},
    {"ALiBi", "alibi=bh", "`alibi_slopes`"},
    {"softcap", "softcap=4", "c tanh(s / c)"},
    {"scale < 0", "scale=-0.3", "any scale, 0 too"},
    {"sink", "sink", "a logit that only enters the denominator"},
    {"dropout", "dropout=0.2 seed=7", "Philox by position, the same everywhere"},
    {"out in F32", "out_dtype=f32", "beside 16-bit q"},
    {"lse_lo", "lse_lo", "what rounding lse lost"},
    {"keep_unused", "keep_unused", "rows of no sequence are left alone"},
    {"batch_invariant", "batch_invariant", "a row's bits depend on its own data"},
    {"splits", "num_splits=3", "parts along kv, merged in order"},
};
constexpr size_t kCount = std::size(kFeatures);
constexpr const char* kTypes[] = {"f32", "bf16", "f16", "f64"};

// Pairs that validate refuses as contradictions: nothing a kernel could do.
bool contradict(size_t a, size_t b) {
  const auto is = [&](size_t i, const char* name) {
    return std::string(kFeatures[i].name) == name;
  };
  return (is(a, "batch_invariant") && is(b, "splits")) ||
         (is(b, "batch_invariant") && is(a, "splits"));
}

std::string cell_problem(size_t a, size_t b, const char* type) {
  std::string text = std::string("dtype=") + type + " batch=2 q_len=37 kv_len=150 head_dim=24 ";
  // A value type that is already F64 keeps its out.
  for (const size_t i : {a, b}) {
    if (i == b && a == b) break;
    if (std::string(kFeatures[i].name) == "out in F32" && std::string(type) == "f64") continue;
    text += std::string(kFeatures[i].words) + " ";
  }
  return text;
}

// "yes", or what is wrong.
std::string run_cell(size_t a, size_t b) {
  for (const char* type : kTypes) {
    const std::string text = cell_problem(a, b, type);
    const ParsedProblem parsed = parse_problem(text);
    if (!parsed.ok()) return text + ": " + parsed.error;
    CheckOptions options;
    options.with_plain = false;
    const CheckReport report = check(parsed.spec, options);
    if (!report.passed()) return report.text();
  }
  return "yes";
}

std::string page() {
  std::ostringstream text;
  text << "# Features\n\n"
          "Every feature composes with every other, forward, in F32, BF16, F16 and F64. This page "
          "is\n"
          "written by `tests/matrix`, which runs each pair in the four types against the float64 "
          "oracle\n"
          "and fails when the page and the run differ.\n\n"
          "| # | feature | what | words of a problem string |\n|---|---|---|---|\n";
  for (size_t i = 0; i < kCount; ++i) {
    text << "| " << i + 1 << " | " << kFeatures[i].name << " | " << kFeatures[i].what << " | `"
         << kFeatures[i].words << "` |\n";
  }
  text << "\n`x`: the pair ran in all four types and every element passed its gate. `=`: a feature "
          "with\n"
          "itself. `-`: the two contradict each other, and validate says why (a forced number of "
          "splits\n"
          "cannot have the constant size that batch invariance needs).\n\n|   |";
  for (size_t i = 0; i < kCount; ++i) text << " " << i + 1 << " |";
  text << "\n|---|";
  for (size_t i = 0; i < kCount; ++i) text << "---|";
  text << "\n";
  for (size_t a = 0; a < kCount; ++a) {
    text << "| **" << a + 1 << "** |";
    for (size_t b = 0; b < kCount; ++b)
      text << (a == b ? " = |" : contradict(a, b) ? " - |" : " x |");
    text << "\n";
  }
  return text.str();
}

// Every cell is run before the page that claims it is compared.
TEST(Matrix, EveryFeatureWithEveryOtherInEveryType) {
  int cells = 0;
  for (size_t a = 0; a < kCount; ++a) {
    for (size_t b = a; b < kCount; ++b) {
      if (contradict(a, b)) continue;
      const std::string result = run_cell(a, b);
      EXPECT_EQ(result, "yes") << kFeatures[a].name << " with " << kFeatures[b].name;
      cells += result == "yes";
    }
  }
  std::cout << page();
  EXPECT_EQ(cells, static_cast<int>(kCount * (kCount + 1) / 2 - 1));
}

TEST(Matrix, ContradictionsAreRefusedByValidate) {
  for (size_t a = 0; a < kCount; ++a) {
    for (size_t b = a + 1; b < kCount; ++b) {
      if (!contradict(a, b)) continue;
      const runmax_problem p = make_problem(problem(cell_problem(a, b, "f32")));
      EXPECT_EQ(runmax_validate(&p), RUNMAX_INVALID_ARGUMENT);
    }
  }
}

TEST(Matrix, ThePageShowsIt) {
  if (const char* file = std::getenv("RUNMAX_WRITE_FEATURES")) std::ofstream(file) << page();
  const char* elsewhere = std::getenv("RUNMAX_FEATURES_PAGE");  // binaries that were moved
  std::ifstream file(elsewhere != nullptr ? elsewhere : RUNMAX_FEATURES_PAGE);
  ASSERT_TRUE(file) << "docs/features.md is missing";
  const std::string shown((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(shown, page()) << "write it anew: RUNMAX_WRITE_FEATURES=docs/features.md";
}

}  // namespace
}  // namespace runmax::testing
