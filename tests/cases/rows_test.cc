// Public bug reports about the softmax of a row: empty, masked, extreme, NaN.
#include "tests/cases/case_test.h"

namespace runmax::testing {
namespace {

double lowest(int64_t dtype) {
  switch (dtype) {
    case RUNMAX_F16:
      return -65504;
    case RUNMAX_BF16:
      return -0x1.fep127;
    default:
      return -static_cast<double>(std::numeric_limits<float>::max());
  }
}

bool b01_visible(int64_t i, int64_t j) { return i == 2 || (i == 0 && j == 0); }

void b01_fill(Case& c) {
  c.fill("q", 0);
  c.fill("k", 0);
  fill_tokens(c, "v", [](int64_t j) { return j + 1.0; });
}

TEST(B01_empty_rows, by_mask_and_by_bias_of_minus_infinity) {
  for (const char* how : {"mask=11qk", "bias=11qk", "bias=11qk bias_dtype=f32"}) {
    for_each_path({}, [&](const std::string& path) {
      if (path.find("f64") != std::string::npos &&
          std::string(how).find("f32") != std::string::npos)
        return;
      Case c(path + "q_len=3 kv_len=4 head_dim=8 " + how);
      b01_fill(c);
      if (c.has("mask")) c.fill("mask", [](const int64_t* i) { return b01_visible(i[2], i[3]); });
      if (c.has("bias")) {
        c.fill("bias", [](const int64_t* i) { return b01_visible(i[2], i[3]) ? 0 : -kInf; });
      }
      run_and_check(c);
      const double out[] = {1, 0, 2.5}, lse[] = {0, -kInf, std::log(4)};
      expect_out(c, [&](int64_t, int64_t, int64_t i, int64_t) { return out[i]; });
      expect_lse(c, [&](int64_t, int64_t, int64_t i) { return lse[i]; });
    });
  }
}

TEST(B01_empty_rows, the_finite_minimum_is_a_shift) {
  for_each_path({}, [](const std::string& path) {
    Case c(path + "q_len=3 kv_len=4 head_dim=8 bias=11qk");
    b01_fill(c);
    const double low = lowest(c.spec().dtype);
    c.fill("bias", [&](const int64_t* i) { return b01_visible(i[2], i[3]) ? 0 : low; });
    run_and_check(c);
    const double out[] = {1, 2.5, 2.5}, lse[] = {0, low, std::log(4)};
    expect_out(c, [&](int64_t, int64_t, int64_t i, int64_t) { return out[i]; });
    expect_lse(
        c, [&](int64_t, int64_t, int64_t i) { return lse[i]; }, 1e-4);
  });
}

TEST(B01_empty_rows, a_window_that_misses_every_key) {
  for_each_path({}, [](const std::string& path) {
    Case c(path + "q_len=70 kv_len=70 head_dim=3 window=2,0 diagonal_offset=69 poison_hidden");
    run_and_check(c);
    for (int64_t i = 3; i < 70; ++i) {
      EXPECT_EQ(c.at("out", {0, 0, i, 1}), 0);
      EXPECT_EQ(c.at("lse", {0, 0, i}), -kInf);
    }
  });
}

TEST(B03_masked_leading_tile, by_bias_and_by_window) {
  for (const char* how : {"bias=11qk", "causal window=9,0", "mask=11qk"}) {
    for_each_path({.dtypes = {"f32", "f64", "f16"}}, [&](const std::string& path) {
      Case c(path + "q_len=640 head_dim=4 " + how);
      c.fill("q", 0);
      fill_tokens(c, "v", [](int64_t j) { return static_cast<double>(j); });
      const auto visible = [](const int64_t* i) { return i[3] <= i[2] && i[3] >= i[2] - 9; };
      if (c.has("bias")) c.fill("bias", [&](const int64_t* i) { return visible(i) ? 0 : -kInf; });
      if (c.has("mask")) c.fill("mask", [&](const int64_t* i) { return visible(i); });
      run_and_check(c);
      expect_out(c, [](int64_t, int64_t, int64_t i, int64_t) {
        return i < 9 ? static_cast<double>(i) / 2 : static_cast<double>(i) - 4.5;
      });
      expect_lse(c, [](int64_t, int64_t, int64_t i) {
        return std::log(static_cast<double>(std::min<int64_t>(i + 1, 10)));
      });
    });
  }
}

TEST(B05_very_negative_scores, are_not_mistaken_for_masked) {
  for (const char* how : {"", "causal", "seqused_kv=6", "window=5,0"}) {
    for_each_path({}, [&](const std::string& path) {
      Case c(path + "q_len=1 kv_len=6 head_dim=64 scale=1 " + how);
      c.fill("q", [](const int64_t* i) { return i[3] == 0 ? 512.0 : 0.0; });
      c.fill("k", [](const int64_t* i) { return i[3] == 0 ? -512.0 : 0.0; });
      fill_tokens(c, "v", [](int64_t j) { return static_cast<double>(j); });
      run_and_check(c);
      expect_out(c, [](auto...) { return 2.5; });
      EXPECT_NEAR(c.at("lse", {0, 0, 0}), -262142.208, 0.04);
    });
  }
}

TEST(B07_half_range_overflow, products_beyond_65504) {
  for_each_path({}, [](const std::string& path) {
    Case a(path + "q_len=3 kv_len=2 head_dim=64 scale=0.125 fill=ones");
    a.fill("q", 60);
    a.fill("k", [](const int64_t* i) { return i[2] == 0 ? 60.0 : -60.0; });
    fill_tokens(a, "v", [](int64_t j) { return j + 1.0; });
    run_and_check(a);
    expect_out(a, [](auto...) { return 1.0; });
    expect_lse(a, [](auto...) { return 28800.0; });

    a.fill("k", 60);
    run_and_check(a);
    expect_out(a, [](auto...) { return 1.5; });
    EXPECT_NEAR(a.at("lse", {0, 0, 1}), 28800 + std::log(2), 0.004);
  });
}

TEST(B07_half_range_overflow, products_beyond_the_range_of_f32_before_the_scale) {
  for (const char* how : {"", "causal", "softcap=1e6", "mask=111k"}) {
    for_each_path({.dtypes = {"f32", "bf16"}}, [&](const std::string& path) {
      Case c(path + "q_len=3 kv_len=140 head_dim=64 scale=1e-17 " + how);
      c.fill("q", 1e20);
      c.fill("k", [](const int64_t* i) { return 1e17 * static_cast<double>(i[2] % 3 - 1); });
      run_and_check(c);
      for (double x : c.values("out")) EXPECT_TRUE(std::isfinite(x));
    });
  }
}

TEST(Rounding, out_is_rounded_once_and_to_nearest) {
  for_each_path({}, [](const std::string& path) {
    for (int64_t keys : {2, 4, 8}) {  // equal weights: the mean is exact before it is rounded
      Case c(path + "q_len=2 head_dim=3 head_dim_v=257 kv_len=" + std::to_string(keys));
      c.fill("q", 0);
      c.fill("v", [](const int64_t* i) {
        return static_cast<double>(
                   random_below(1, static_cast<uint64_t>(i[2] * 257 + i[3]), 2048)) -
               100;
      });
      run_and_check(c);
      for (int64_t d = 0; d < 257; ++d) {
        double sum = 0;
        for (int64_t j = 0; j < keys; ++j) sum += c.at("v", {0, 0, j, d});
        EXPECT_EQ(c.at("out", {0, 0, 1, d}),
                  rounded(c.problem().out.dtype, sum / static_cast<double>(keys)));
      }
    }
  });
}

TEST(B09_long_row_sums, do_not_saturate) {
  for (int64_t keys : {512, 513, 4096}) {
    for_each_path({}, [&](const std::string& path) {
      Case c(path + "q_len=2 head_dim=8 kv_len=" + std::to_string(keys));
      c.fill("q", 0);
      c.fill("v", 1);
      run_and_check(c);
      expect_out(c, [](auto...) { return 1.0; });
      expect_lse(c, [&](auto...) { return std::log(static_cast<double>(keys)); });
      if (keys % 2 != 0) return;
      fill_tokens(c, "v", [&](int64_t j) { return j >= keys / 2 ? 1.0 : 0.0; });
      run_and_check(c);
      expect_out(c, [](auto...) { return 0.5; });
    });
  }
}

// Bits of all outputs, to hold two runs against each other.
std::vector<double> bits(const Case& c) {
  std::vector<double> all = c.values("out");
  for (double x : c.values("lse")) all.push_back(x);
  return all;
}

TEST(B11_poisoned_unused_storage, past_the_declared_length) {
  for_each_path({}, [](const std::string& path) {
    std::vector<double> first;
    for (const char* where : {"kv", "k", "v"}) {
      for (double poison : {0.0, std::nan(""), kInf, -kInf, 6e4}) {
        Case c(path + "batch=2 q_len=3 kv_len=3 head_dim=64 seqused_kv=1,3");
        c.fill("q", 0.5);
        c.fill("k", 0.5);
        c.fill("v", [](const int64_t* i) { return static_cast<double>(10 * i[0] + i[2]); });
        for (const char* name = where; *name; ++name) {
          for (int64_t j = 1; j < 3; ++j) {
            for (int64_t d = 0; d < 64; ++d) c.set(std::string_view(name, 1), {0, 0, j, d}, poison);
          }
        }
        run_and_check(c);
        expect_out(c, [](int64_t b, auto...) { return b == 0 ? 0.0 : 11.0; });
        expect_lse(c, [](int64_t b, auto...) { return b == 0 ? 2 : 2 + std::log(3); });
        if (first.empty()) first = bits(c);
        EXPECT_EQ(bits(c), first) << "poison " << poison << " in " << where;
      }
    }
  });
}

TEST(B11_poisoned_unused_storage, keys_hidden_from_every_row) {
  for (const char* shape :
       {"q_len=40 kv_len=300 causal window=20,0", "q_len=3 kv_len=200 window=5,5",
        "q_len=33 kv_len=65 mask=b11k batch=2", "q_len=20 kv_len=90 causal align=top_left"}) {
    for (const char* poison : {"nan", "inf", "1e30", "zero"}) {
      for_each_path({.dtypes = kAllTypes, .splits = {0, 2}}, [&](const std::string& path) {
        Case c(path + shape + " head_dim=5 poison_hidden poison=" + poison);
        run_and_check(c);
        for (double x : c.values("out")) EXPECT_TRUE(std::isfinite(x));
      });
    }
  }
}

TEST(B13_nan_honesty, a_nan_query_reaches_its_own_row_only) {
  for_each_path({}, [](const std::string& path) {
    Case c(path + "q_heads=2 q_len=2 kv_len=2 head_dim=4 fill=ones");
    c.fill("q", 0);
    c.fill("k", 0);
    c.set("q", {0, 1, 0, 2}, std::nan(""));
    run_and_check(c);
    const auto hit = [](int64_t h, int64_t i) { return h == 1 && i == 0; };
    expect_out(c, [&](int64_t, int64_t h, int64_t i, int64_t) { return hit(h, i) ? NAN : 1.0; });
    expect_lse(c, [&](int64_t, int64_t h, int64_t i) { return hit(h, i) ? NAN : std::log(2); });
  });
}

TEST(B13_nan_honesty, a_nan_key_or_value_reaches_the_rows_that_see_it) {
  for (const char* name : {"k", "v"}) {
    for_each_path({}, [&](const std::string& path) {
      Case c(path + "q_heads=2 q_len=4 kv_len=4 head_dim=4 fill=ones causal");
      c.set(name, {0, 0, 2, 1}, std::nan(""));
      run_and_check(c);
      expect_out(c, [&](int64_t, int64_t h, int64_t i, int64_t d) {
        const bool hit = h == 0 && i >= 2 && (name[0] == 'k' || d == 1);
        return hit ? NAN : 1.0;
      });
    });
  }
}

TEST(B13_nan_honesty, an_infinite_score_is_not_hidden) {
  for_each_path({}, [](const std::string& path) {
    Case c(path + "q_len=3 kv_len=70 head_dim=4 fill=ones");
    c.set("k", {0, 0, 66, 0}, kInf);
    run_and_check(c);
    expect_out(c, [](auto...) { return NAN; });
  });
}

TEST(B13_nan_honesty, scores_of_minus_infinity_weigh_nothing_while_others_are_finite) {
  for (const char* how : {"", "seqused_kv=300", "sink"}) {
    for_each_path({}, [&](const std::string& path) {
      // Whole tiles of visible keys at -inf, before and after the finite ones.
      Case c(path + "q_len=3 kv_len=300 head_dim=4 fill=ones " + how);
      if (c.has("sink")) c.fill("sink", -kInf);
      c.fill("k", [](const int64_t* i) {
        return i[3] != 0 ? 0 : i[2] >= 140 && i[2] < 144 ? 1 : -kInf;
      });
      fill_tokens(c, "v", [](int64_t j) { return j >= 140 && j < 144 ? j - 138.0 : 50.0; });
      run_and_check(c);
      expect_out(c, [](auto...) { return 3.5; });
      expect_lse(c, [](auto...) { return std::log(4) + 0.5; });
    });
  }
}

TEST(B73_small_weights, keep_numerator_and_denominator_together) {
  for (int variant = 0; variant < 3; ++variant) {
    for_each_path({.dtypes = kAllTypes, .splits = {0, 3}}, [&](const std::string& path) {
      Case c(path + "q_len=1 kv_len=4096 head_dim=64 scale=1");
      c.fill("q", [](const int64_t* i) { return i[3] == 0 ? 1.0 : 0.0; });
      c.fill("k", [](const int64_t* i) { return i[3] == 0 && i[2] == 0 ? 8.0 : 0.0; });
      fill_tokens(c, "v", [&](int64_t j) {
        return variant == 0 ? 1.0 : variant == 1 ? (j == 0 ? 1.0 : 0.0) : (j == 0 ? 0.0 : 1.0);
      });
      run_and_check(c);
      const double first = std::exp(8) / (std::exp(8) + 4095);
      const double wanted[] = {1, first, 1 - first};
      expect_out(c, [&](auto...) { return wanted[variant]; });
      expect_lse(c, [](auto...) { return std::log(std::exp(8) + 4095); });
    });
  }
}

TEST(B93_tiny_values, stay_tiny) {
  for_each_path({.dtypes = {"bf16", "f32"}}, [](const std::string& path) {
    Case c(path + "q_len=2 kv_len=8 head_dim=16 fill=ones");
    for (const char* name : {"k", "v"}) {
      c.fill(name, [](const int64_t* i) { return (i[2] + i[3]) % 2 ? -1e-35 : 1e-35; });
    }
    run_and_check(c);
    for (double x : c.values("out")) EXPECT_LE(std::fabs(x), 1e-34);
    expect_lse(c, [](auto...) { return std::log(8); });
  });
}

}  // namespace
}  // namespace runmax::testing
