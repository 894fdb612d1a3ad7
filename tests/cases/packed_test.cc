// Public bug reports about packed sequences, their metadata, masks as data, and dropout.
#include "tests/cases/case_test.h"

namespace runmax::testing {
namespace {

double number(int64_t i) { return static_cast<double>(i); }

// Sequence of a token, and its place there.
struct Place {
  int64_t sequence, position;
};
Place place_of(const Case& c, bool q, int64_t token) {
  for (int64_t b = 0; b < c.spec().batch; ++b) {
    const int64_t begin = q ? c.q_start(b) : c.kv_start(b);
    const int64_t end = q ? c.q_start(b + 1) : c.kv_start(b + 1);
    if (token >= begin && token < end) return {b, token - begin};
  }
  return {-1, 0};
}

TEST(B17_empty_rows_packed, more_queries_than_keys) {
  for_each_path({}, [](const std::string& path) {
    Case c(path +
           "packed batch=3 q_len=146 kv_len=1 head_dim=32 causal "
           "cu_seqlens_q=0,76,110,256 cu_seqlens_kv=0,1,2,3");
    for (const char* name : {"q", "k"}) {
      c.fill(name, [](const int64_t* i) {
        return 3 * random_normal(5, static_cast<uint64_t>(i[0] * 32 + i[2]));
      });
    }
    c.fill("v", [](const int64_t* i) { return number(i[0]) + 1; });
    run_and_check(c);
    for (int64_t t = 0; t < 256; ++t) {
      const double wanted = t == 75 ? 1 : t == 109 ? 2 : t == 255 ? 3 : 0;
      expect_near(c.at("out", {t, 0, 7}), wanted, 1e-6, "out");
      EXPECT_EQ(c.at("lse", {0, t}) == -kInf, wanted == 0) << t;
    }
  });
}

TEST(B21_packed_empty_sequences, decode_with_a_hole) {
  for_each_path({}, [](const std::string& path) {
    Case c(path +
           "packed batch=3 q_heads=9 kv_heads=3 q_len=1 kv_len=3 head_dim=64 causal "
           "cu_seqlens_q=0,1,1,2 cu_seqlens_kv=0,3,3,5");
    const double v[] = {1, 2, 3, 10, 20};
    c.fill("q", 0);
    c.fill("v", [&](const int64_t* i) { return v[i[0]]; });
    run_and_check(c);
    for (int64_t h = 0; h < 9; ++h) {
      expect_near(c.at("out", {0, h, 0}), 2, 1e-6, "out");
      expect_near(c.at("out", {1, h, 63}), 15, 1e-6, "out");
      expect_near(c.at("lse", {h, 0}), std::log(3), 1e-6, "lse");
      expect_near(c.at("lse", {h, 1}), std::log(2), 1e-6, "lse");
    }
  });
}

TEST(B23_tiny_totals, fewer_tokens_than_sequences) {
  for_each_path({}, [](const std::string& path) {
    Case c(path +
           "packed batch=4 q_heads=21 kv_heads=7 q_len=1 kv_len=1 head_dim=120 "
           "scale=10.954451150103322 "
           "cu_seqlens_q=0,0,0,0,1 cu_seqlens_kv=0,0,0,0,1");
    c.fill("v", [](const int64_t* i) { return number(i[1]); });
    run_and_check(c);
    for (int64_t h = 0; h < 21; ++h) EXPECT_EQ(c.at("out", {0, h, 5}), number(h / 3));
  });
}

// A packed problem of 8 tokens, whose starts a test then spoils.
constexpr const char* kPacked =
    "packed batch=2 q_len=5 kv_len=5 head_dim=8 cu_seqlens_q=0,4,8 cu_seqlens_kv=0,4,8";

void expect_refused(Case& c, const std::string& field) {
  const Outcome outcome = execute(c);
  EXPECT_EQ(outcome.status, RUNMAX_INVALID_ARGUMENT) << outcome.text();
  EXPECT_EQ(outcome.damage, "");
  EXPECT_NE(outcome.message.find(field), std::string::npos) << outcome.message;
  EXPECT_EQ(outcome.message.find('\n'), std::string::npos) << outcome.message;
}

TEST(B25_metadata_checks, inconsistent_starts_are_refused) {
  for (const char* name : {"cu_seqlens_q", "cu_seqlens_kv"}) {
    const int64_t bad[][3] = {{1, 4, 8}, {0, 5, 3}, {0, 4, 9}, {0, -1, 8}, {-1, 4, 8}, {0, 9, 8}};
    for (const auto& starts : bad) {
      Case c(kPacked);
      for (int64_t n = 0; n < 3; ++n) c.set(name, {n}, number(starts[n]));
      expect_refused(c, name);
    }
    Case beyond(kPacked);  // one sequence of 6, where 5 is the longest
    beyond.set(name, {1}, 6);
    expect_refused(beyond, name);
    Case shorter(kPacked);
    runmax_problem& p = shorter.problem();
    (std::string(name) == "cu_seqlens_q" ? p.cu_seqlens_q : p.cu_seqlens_kv).shape[0] = 2;
    expect_refused(shorter, "cu_seqlens");
    Case typed(kPacked);
    (std::string(name) == "cu_seqlens_q" ? typed.problem().cu_seqlens_q
                                         : typed.problem().cu_seqlens_kv)
        .dtype = RUNMAX_F32;
    expect_refused(typed, name);
  }
}

TEST(B25_metadata_checks, an_end_short_of_the_total_is_legal) {
  for_each_path({}, [](const std::string& path) {
    Case c(path +
           "packed batch=2 q_len=5 kv_len=5 head_dim=8 cu_seqlens_q=0,4,8 cu_seqlens_kv=0,4,8");
    c.set("cu_seqlens_q", {2}, 7);
    c.set("cu_seqlens_kv", {2}, 6);
    for (int64_t d = 0; d < 8; ++d) {
      c.set("q", {7, 0, d}, std::nan(""));
      for (int64_t t : {6, 7}) {
        c.set("k", {t, 0, d}, std::nan(""));
        c.set("v", {t, 0, d}, kInf);
      }
    }
    run_and_check(c);
    EXPECT_EQ(c.at("out", {7, 0, 0}), 0);
    EXPECT_EQ(c.at("lse", {0, 7}), -kInf);
  });
}

TEST(B25_metadata_checks, lengths_beyond_the_storage_are_refused) {
  for (const char* name : {"seqused_q", "seqused_kv"}) {
    for (int value : {-1, 6, INT32_MAX, INT32_MIN}) {
      Case c(std::string("batch=2 q_len=5 head_dim=8 ") + name + "=5,0");
      c.set(name, {1}, value);
      expect_refused(c, std::string(name) + "[1]");
    }
  }
}

TEST(B27_mask_shape_checks, wrong_shapes_are_refused) {
  for (const char* name : {"mask", "bias"}) {
    const int64_t wrong[][2] = {{10, 15}, {10, 21}, {9, 20}, {20, 10}, {10, 0}, {0, 20}};
    for (const auto& [rows, columns] : wrong) {
      Case c(std::string("q_len=10 kv_len=20 head_dim=8 ") + name + "=11qk");
      runmax_tensor& t = std::string(name) == "mask" ? c.problem().mask : c.problem().bias;
      t.shape[2] = rows;
      t.shape[3] = columns;
      expect_refused(c, name);
    }
  }
}

TEST(B27_mask_shape_checks, right_and_broadcast_shapes_work) {
  for (const char* pattern : {"11qk", "111k", "11q1", "bhqk", "b1qk", "1h1k", "1111"}) {
    for_each_path({}, [&](const std::string& path) {
      Case c(path + "batch=2 q_heads=2 q_len=10 kv_len=20 head_dim=8 mask=" + pattern);
      run_and_check(c);
    });
  }
}

TEST(B83_context_parallel, sequences_padded_inside_packed_storage) {
  for_each_path({}, [](const std::string& path) {
    Case c(path +
           "packed batch=2 q_len=12 kv_len=12 head_dim=8 causal cu_seqlens_q=0,12,20 "
           "cu_seqlens_kv=0,12,20 seqused_q=9,8 seqused_kv=9,8");
    for (const char* name : {"q", "v"}) {
      for_each_element(c.buffer(name).tensor, [&](const int64_t* i, int64_t) {
        const Place place = place_of(c, true, i[0]);
        if (place.position >= c.q_used(place.sequence)) return;
        c.set(name, {i[0], i[1], i[2]}, name[0] == 'q' ? 0 : number(place.position));
      });
    }
    run_and_check(c);
    for (int64_t t = 0; t < 20; ++t) {
      const Place place = place_of(c, true, t);
      const bool used = place.position < c.q_used(place.sequence);
      expect_near(c.at("out", {t, 0, 3}), used ? number(place.position) / 2 : 0, 1e-2, "out");
      if (!used) {
        EXPECT_EQ(c.at("lse", {0, t}), -kInf);
      }
    }
  });
}

TEST(B85_dropout, differs_from_call_to_call_and_repeats_with_its_seed) {
  for_each_path({.dtypes = kAllTypes, .splits = {0, 2}}, [](const std::string& path) {
    std::vector<double> by_seed[3];
    const char* seeds[] = {"1", "2", "1"};
    for (int n = 0; n < 3; ++n) {
      Case c(path + "q_len=64 head_dim=64 dropout=0.5 seed=" + seeds[n]);
      c.fill("q", 0);
      c.fill("v", [](const int64_t* i) { return i[2] == i[3] ? 1.0 : 0.0; });
      run_and_check(c);
      by_seed[n] = c.values("out");
      int64_t kept = 0;
      for (double x : by_seed[n]) {
        EXPECT_TRUE(x == 0 || x == 1.0 / 32) << x;
        kept += x != 0;
      }
      EXPECT_NEAR(number(kept) / 4096, 0.5, 0.04);
      expect_lse(c, [](auto...) { return std::log(64); });  // before dropout
    }
    EXPECT_NE(by_seed[0], by_seed[1]);
    EXPECT_EQ(by_seed[0], by_seed[2]);
  });
}

TEST(B85_dropout, all_and_nothing) {
  for_each_path({}, [](const std::string& path) {
    Case all(path + "q_len=5 kv_len=70 head_dim=8 dropout=1 seed=3");
    run_and_check(all);
    expect_out(all, [](auto...) { return 0.0; });
    Case tiny(path +
              "q_len=5 kv_len=70 head_dim=8 dropout=1e-12 seed=3 offset=18446744073709551615");
    run_and_check(tiny);
  });
}

TEST(Packed, equals_padded_bit_for_bit) {
  for_each_path({.dtypes = kAllTypes, .splits = {1}}, [](const std::string& path) {
    const std::string shape =
        path +
        "batch=3 q_heads=4 kv_heads=2 q_len=20 kv_len=90 head_dim=8 causal sink "
        "dropout=0.25 seed=9 batch_invariant";
    const std::string one = std::string(shape).replace(shape.find("num_splits=1"), 12, "");
    Case packed(one + " packed cu_seqlens_q=0,20,21,38 cu_seqlens_kv=0,90,91,150");
    Case padded(one + " seqused_q=20,1,17 seqused_kv=90,1,59");
    for (const char* name : {"q", "k", "v"}) {
      for_each_element(packed.buffer(name).tensor, [&](const int64_t* i, int64_t) {
        const Place place = place_of(packed, name[0] == 'q', i[0]);
        padded.set(name, {place.sequence, i[1], place.position, i[2]},
                   packed.at(name, {i[0], i[1], i[2]}));
      });
    }
    padded.fill("sink", [&](const int64_t* i) { return packed.at("sink", {i[0]}); });
    run_and_check(packed);
    run_and_check(padded);
    for_each_element(packed.buffer("out").tensor, [&](const int64_t* i, int64_t) {
      const Place place = place_of(packed, true, i[0]);
      EXPECT_EQ(packed.at("out", {i[0], i[1], i[2]}),
                padded.at("out", {place.sequence, i[1], place.position, i[2]}));
    });
  });
}

}  // namespace
}  // namespace runmax::testing
