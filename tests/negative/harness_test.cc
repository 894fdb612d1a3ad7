// The test machinery must see what it is there to see: writes past an output, into gaps, guards and
// inputs, elements left out, and words that say nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "testing/element.h"
#include "testing/run.h"

namespace runmax::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

void write_all(Case& c) {
  c.seal();
  for (const char* name : {"out", "lse"}) c.fill(name, 0);
}

std::byte* bytes_of(const Case& c, const char* name) {
  return static_cast<std::byte*>(c.buffer(name).pointer());
}

TEST(Harness, honest_writing_is_no_damage) {
  for (const char* layout :
       {"bhsd", "bshd", "bhds", "padded", "strided", "negative", "broadcast"}) {
    Case c(std::string("batch=2 q_heads=2 q_len=3 head_dim=5 layout=") + layout);
    write_all(c);
    EXPECT_EQ(c.damage(), "") << layout;
    EXPECT_EQ(c.unwritten("out"), 0) << layout;
    EXPECT_EQ(c.unwritten("lse"), 0) << layout;
  }
}

TEST(Harness, one_byte_outside_an_output_is_seen) {
  for (const std::string dtype : {"f32", "f64", "bf16", "f16"}) {
    Case c("q_len=3 head_dim=5 dtype=" + dtype);
    const int64_t bytes = c.buffer("out").storage_bytes;
    for (int64_t at : {int64_t{-1}, bytes, int64_t{-200}, bytes + 200}) {
      write_all(c);
      bytes_of(c, "out")[at] ^= std::byte{1};
      EXPECT_NE(c.damage(), "") << dtype << " byte " << at;
    }
  }
}

TEST(Harness, a_write_into_a_gap_is_seen) {
  for (const char* layout : {"padded", "strided", "negative"}) {
    Case c(std::string("q_len=3 head_dim=5 layout=") + layout);
    write_all(c);
    // One element past a row's last channel lies in the gap, in each of these layouts.
    const runmax_tensor& t = c.problem().out;
    const int64_t gap = t.stride[3] * 4 + (t.stride[3] < 0 ? -1 : 1);
    store(t.dtype, c.buffer("out").pointer(), gap, 1.0);
    EXPECT_NE(c.damage(), "") << layout;
  }
}

TEST(Harness, a_written_input_is_seen) {
  for (const char* name : {"q", "k", "v", "bias", "seqused_kv"}) {
    Case c("q_len=3 head_dim=5 bias seqused_kv=2");
    write_all(c);
    bytes_of(c, name)[1] ^= std::byte{1};
    EXPECT_NE(c.damage(), "") << name;
    write_all(c);
    bytes_of(c, name)[-3] ^= std::byte{1};
    EXPECT_NE(c.damage(), "") << name;
  }
}

TEST(Harness, an_element_left_out_is_seen) {
  for (const std::string dtype : {"f32", "f64", "bf16", "f16"}) {
    Case c("q_heads=2 q_len=3 head_dim=5 layout=strided dtype=" + dtype);
    c.seal();
    EXPECT_EQ(c.unwritten("out"), 30);
    int64_t left = 30;
    for_each_element(c.problem().out, [&](const int64_t* i, int64_t) {
      c.set("out", {i[0], i[1], i[2], i[3]}, left % 2 ? std::nan("") : 0);
      EXPECT_EQ(c.unwritten("out"), --left);
    });
  }
}

TEST(Harness, poison_fills_what_must_not_be_read) {
  Case c("batch=2 q_len=4 kv_len=6 head_dim=3 seqused_q=4,1 seqused_kv=2,0 layout=padded");
  const auto is_nan = [&](const char* name, int64_t b, int64_t s) {
    return std::isnan(c.at(name, {b, 0, s, 1}));
  };
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t s = 0; s < 4; ++s) EXPECT_EQ(is_nan("q", b, s), s >= c.q_used(b));
    for (int64_t s = 0; s < 6; ++s) EXPECT_EQ(is_nan("k", b, s), s >= c.kv_used(b));
    for (int64_t s = 0; s < 6; ++s) EXPECT_EQ(is_nan("v", b, s), s >= c.kv_used(b));
  }
  const runmax_tensor& t = c.problem().q;
  EXPECT_TRUE(std::isnan(load(t.dtype, c.buffer("q").pointer(), 3)));   // the gap after row 0
  EXPECT_TRUE(std::isnan(load(t.dtype, c.buffer("q").pointer(), -1)));  // the guard before
  Case zero(
      "batch=2 q_len=4 kv_len=6 head_dim=3 seqused_q=4,1 seqused_kv=2,0 layout=padded poison=zero");
  EXPECT_EQ(zero.at("k", {1, 0, 3, 1}), 0);
}

TEST(Harness, hidden_poison_is_what_no_row_sees) {
  Case c("q_len=2 kv_len=6 head_dim=3 causal window=1,0 bias=11qk poison_hidden");
  // Rows look from 4 and 5, one key back.
  for (int64_t j = 0; j < 6; ++j) {
    EXPECT_EQ(std::isnan(c.at("k", {0, 0, j, 0})), j < 3) << j;
    EXPECT_EQ(std::isnan(c.at("v", {0, 0, j, 2})), j < 3) << j;
    for (int64_t i = 0; i < 2; ++i) {
      EXPECT_EQ(std::isnan(c.at("bias", {0, 0, i, j})), !c.visible(0, 0, i, j)) << i << " " << j;
    }
  }
  Case empty("q_len=3 kv_len=1 head_dim=3 causal poison_hidden");
  EXPECT_TRUE(std::isnan(empty.at("q", {0, 0, 0, 0})));
  EXPECT_FALSE(std::isnan(empty.at("q", {0, 0, 2, 0})));
}

TEST(Harness, pointers_are_aligned_as_said_and_no_better) {
  for (const std::string dtype : {"f32", "f64", "bf16", "f16"}) {
    for (int64_t alignment : {0, 16, 64, 1024}) {
      for (const char* layout : {"bhsd", "negative", "strided"}) {
        Case c("q_len=5 head_dim=7 mask sink dtype=" + dtype + " layout=" + layout +
               " alignment=" + std::to_string(alignment));
        for (const char* name : {"q", "k", "v", "out", "lse", "mask", "sink"}) {
          const runmax_tensor& t = c.buffer(name).tensor;
          const auto exact =
              static_cast<uintptr_t>(t.min_alignment > 0 ? t.min_alignment : size_of(t.dtype));
          const auto address = reinterpret_cast<uintptr_t>(c.buffer(name).pointer());
          EXPECT_EQ(address % exact, 0u) << name;
          EXPECT_EQ(address % (2 * exact), exact) << name;
        }
      }
    }
  }
}

TEST(Harness, data_depend_on_seed_and_index_alone) {
  const char* words = "batch=2 q_heads=2 q_len=5 kv_len=9 head_dim=4 bias mask sink data_seed=";
  Case a(std::string(words) + "3"), b(std::string(words) + "3 layout=negative poison=1e30"),
      other(std::string(words) + "4");
  for (const char* name : {"q", "k", "v", "bias", "mask", "sink"}) {
    EXPECT_EQ(a.values(name), b.values(name)) << name;
    EXPECT_NE(a.values(name), other.values(name)) << name;
  }
  // These numbers are the same on every machine, or problem strings replay something else.
  EXPECT_EQ(random_word(1, 0), 0xf4a90164c4749e1au);
  EXPECT_EQ(random_word(7, 3), 0x475dc5e216a29efcu);
  EXPECT_EQ(random_unit(2, 5), 0x1.5af69007591fp-4);
  EXPECT_EQ(random_normal(1, 0), -0x1.54400aa2008bep+0);
  double sum = 0, squares = 0;
  for (uint64_t n = 0; n < 100000; ++n) {
    const double x = random_normal(1, n);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / 1e5, 0, 0.01);
  EXPECT_NEAR(squares / 1e5, 1, 0.01);
}

TEST(Harness, elements_round_once_to_nearest_even) {
  EXPECT_EQ(rounded(RUNMAX_BF16, 1 + 0x1p-8), 1);
  EXPECT_EQ(rounded(RUNMAX_BF16, 1 + 0x1p-8 + 0x1p-40), 1 + 0x1p-7);
  EXPECT_EQ(rounded(RUNMAX_BF16, 1 + 3 * 0x1p-8), 1 + 0x1p-6);
  EXPECT_EQ(rounded(RUNMAX_F16, 65519.999), 65504);
  EXPECT_EQ(rounded(RUNMAX_F16, 65520), kInf);
  EXPECT_EQ(rounded(RUNMAX_F16, 0x1p-25), 0);
  EXPECT_EQ(rounded(RUNMAX_F16, 0x1.8p-25), 0x1p-24);
  EXPECT_EQ(rounded(RUNMAX_BF16, -kInf), -kInf);
  EXPECT_TRUE(std::isnan(rounded(RUNMAX_F16, std::nan(""))));
  for (int code = 0; code < 65536; ++code) {
    for (runmax_dtype dtype : {RUNMAX_BF16, RUNMAX_F16}) {
      const auto bits = static_cast<uint16_t>(code);
      uint16_t again = 0;
      const double value = load(dtype, &bits, 0);
      store(dtype, &again, 0, value);
      if (!std::isnan(value)) {
        ASSERT_EQ(again, bits);
      }
    }
  }
}

#if defined(__SANITIZE_ADDRESS__)
TEST(HarnessDeathTest, a_read_of_a_guard_stops_the_program) {
  Case c("q_len=3 head_dim=5");
  const Buffer& b = c.buffer("k");
  c.forbid_guards(true);
  EXPECT_DEATH(store(RUNMAX_F32, c.buffer("out").pointer(), 0, load(RUNMAX_F32, b.pointer(), 15)),
               "use-after-poison");
  c.forbid_guards(false);
}
#endif

TEST(Harness, a_refused_call_writes_nothing_and_says_why) {
  Case c("q_heads=3 kv_heads=2 q_len=3 head_dim=4");
  const Outcome outcome = execute(c);
  EXPECT_EQ(outcome.status, RUNMAX_INVALID_ARGUMENT);
  EXPECT_EQ(outcome.damage, "");
  EXPECT_FALSE(outcome.ok());
}

TEST(Harness, a_wrong_result_fails_the_check) {
  Case c("q_len=3 kv_len=40 head_dim=4");
  const CheckReport good = check(c);
  EXPECT_TRUE(good.passed()) << good.text();
  EXPECT_NE(good.text().find("passed"), std::string::npos);
  const auto oracle = expected(c.problem(), c.args());
  c.set("out", {0, 0, 1, 2}, c.at("out", {0, 0, 1, 2}) + 1e-3);
  EXPECT_FALSE(compare_all(c.problem(), c.args(), oracle).passed);
}

TEST(ProblemString, round_trips) {
  for (const char* text :
       {"",
        "dtype=bf16 batch=2 q_heads=8 kv_heads=2 q_len=129 kv_len=1025 head_dim=64 causal "
        "window=3,0",
        "direction=merge partials=0 out_dtype=bf16",
        "scale=-0.125 softcap=1e-05 alibi=bh bias=b11k",
        "packed batch=2 cu_seqlens_q=0,3,5 cu_seqlens_kv=0,1,9 q_len=3 kv_len=8 segments=4",
        "seqused_kv=3,0 batch=2 diagonal_offset=-7,8 prefix_len seqused_q dropout=0.1 "
        "seed=18446744073709551615",
        "block_size=16,1 block_density=0.25 block_heads=kv num_splits=3 isa=baseline threads=7 "
        "kernel=a_b",
        "layout=negative alignment=64 v_in_k poison=1e30 poison_hidden fill=onehot data_seed=9",
        "lse_lo keep_unused batch_invariant deterministic sink sink_tokens=2 align=top_left "
        "mask=1111"}) {
    const ParsedProblem first = parse_problem(text);
    ASSERT_TRUE(first.ok()) << first.error;
    const std::string canonical = to_string(first.spec);
    const ParsedProblem second = parse_problem(canonical);
    ASSERT_TRUE(second.ok()) << second.error;
    EXPECT_EQ(first.spec, second.spec) << canonical;
    EXPECT_EQ(to_string(second.spec), canonical);
  }
}

TEST(ProblemString, follows_its_defaults) {
  const ProblemSpec spec = problem("q_heads=6 q_len=9 head_dim=7 dtype=f16");
  EXPECT_EQ(spec.kv_heads, 6);
  EXPECT_EQ(spec.kv_len, 9);
  EXPECT_EQ(spec.head_dim_v, 7);
  EXPECT_EQ(spec.out_dtype, RUNMAX_F16);
  EXPECT_EQ(problem("kv_len=9 q_len=3").kv_len, 9);
}

TEST(ProblemString, refuses_with_one_line) {
  const char* bad[][2] = {{"heads=3", "heads"},
                          {"q_len", "q_len"},
                          {"q_len=", "q_len"},
                          {"q_len=-1", "q_len"},
                          {"q_len=1e3", "q_len"},
                          {"q_len=99999999999999999999", "q_len"},
                          {"q_len=3 q_len=3", "q_len"},
                          {"causal=1", "causal"},
                          {"window=3", "window"},
                          {"window=-2,0", "window"},
                          {"scale=nan", "scale"},
                          {"scale=inf", "scale"},
                          {"dtype=f8", "dtype"},
                          {"bias=qk", "bias"},
                          {"dropout=1.5", "dropout"},
                          {"dropout=nan", "dropout"},
                          {"isa=mmx", "isa"},
                          {"layout=zigzag", "layout"},
                          {"alignment=3", "alignment"},
                          {"v_in_k head_dim_v=99", "v_in_k"},
                          {"block_size=3,0", "block_size"},
                          {"seqused_q=1,2", "seqused_q"},
                          {"seqused_q=1,,2 batch=3", "seqused_q"},
                          {"cu_seqlens_q=0,1", "packed"},
                          {"=3", "unknown"},
                          {"\x01\x02=3", "unknown"},
                          {"kernel=", "kernel"},
                          {"lse_lo no_lse", "lse_lo"},
                          {"data_seed=-1", "data_seed"}};
  for (const auto& [text, names] : bad) {
    const ParsedProblem parsed = parse_problem(text);
    EXPECT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.error.rfind("problem: ", 0), 0u) << parsed.error;
    EXPECT_NE(parsed.error.find(names), std::string::npos) << parsed.error;
    EXPECT_EQ(parsed.error.find('\n'), std::string::npos) << parsed.error;
  }
}

TEST(ProblemString, a_problem_too_large_for_memory_is_an_exception_not_a_crash) {
  EXPECT_THROW(Case("q_len=1000000000000 batch=1000000000000"), std::length_error);
  EXPECT_THROW(Case("q_len=1000000000 head_dim=100000"), std::bad_alloc);
}

}  // namespace
}  // namespace runmax::testing
