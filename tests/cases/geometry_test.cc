// Public bug reports about shapes, alignment, strides, heads, scale and score policies.
#include <sys/mman.h>

#include <cstring>

#include "tests/cases/case_test.h"

namespace runmax::testing {
namespace {

double number(int64_t i) { return static_cast<double>(i); }

TEST(B15_causal_alignment, more_queries_than_keys) {
  for_each_path({}, [](const std::string& path) {
    for (const char* align : {"bottom_right", "top_left"}) {
      Case c(path + "q_len=5 kv_len=2 head_dim=8 causal align=" + align);
      c.fill("q", 0);
      fill_tokens(c, "v", [](int64_t j) { return 3.0 + 2.0 * number(j); });
      run_and_check(c);
      const double bottom[] = {0, 0, 0, 3, 4}, top[] = {3, 4, 4, 4, 4};
      const bool is_top = c.spec().align == RUNMAX_ALIGN_TOP_LEFT;
      expect_out(c,
                 [&](int64_t, int64_t, int64_t i, int64_t) { return is_top ? top[i] : bottom[i]; });
      expect_lse(c, [&](int64_t, int64_t, int64_t i) {
        const double keys = is_top ? std::min(2.0, number(i) + 1) : number(i) - 2;
        return keys <= 0 ? -kInf : std::log(keys);
      });
    }
    Case c(path + "q_len=128 kv_len=3 head_dim=8 causal");
    c.fill("q", 0);
    fill_tokens(c, "v", [](int64_t j) { return 1.0 + number(j); });
    run_and_check(c);
    expect_out(c, [](int64_t, int64_t, int64_t i, int64_t) {
      return i < 125 ? 0 : 1 + (number(i) - 125) / 2;
    });
  });
}

TEST(B15_causal_alignment, explicit_offsets_per_batch_entry) {
  for_each_path({}, [](const std::string& path) {
    Case c(path + "batch=4 q_len=3 kv_len=5 head_dim=8 causal diagonal_offset=-2,0,2,9");
    c.fill("q", 0);
    fill_tokens(c, "v", number);
    run_and_check(c);
    const int64_t offset[] = {-2, 0, 2, 9};
    expect_out(c, [&](int64_t b, int64_t, int64_t i, int64_t) {
      const int64_t last = std::min<int64_t>(4, i + offset[b]);
      return last < 0 ? 0 : number(last) / 2;
    });
  });
}

TEST(B19_zero_size, no_keys) {
  for (const char* shape :
       {"batch=2 q_heads=4 q_len=3 kv_len=0", "batch=2 q_heads=4 q_len=3 kv_len=0 causal",
        "batch=2 q_heads=4 kv_heads=2 q_len=3 kv_len=5 seqused_kv=0,0 causal",
        "batch=2 q_heads=4 q_len=3 kv_len=5 seqused_kv=0,0 window=1,1"}) {
    for_each_path({}, [&](const std::string& path) {
      Case c(path + shape + " head_dim=64 lse_lo");
      run_and_check(c);
      expect_out(c, [](auto...) { return 0.0; });
      expect_lse(c, [](auto...) { return -kInf; });
    });
  }
}

TEST(B19_zero_size, no_queries_no_batch_no_heads) {
  for_each_path({}, [](const std::string& path) {
    for (const char* shape : {"batch=2 q_len=0 kv_len=7", "batch=0 q_len=3 kv_len=7",
                              "q_heads=0 q_len=3 kv_len=7", "batch=0 q_len=0 kv_len=0 causal"}) {
      Case c(path + shape + " head_dim=8");
      const Outcome outcome = execute(c);
      EXPECT_TRUE(outcome.ok()) << shape << ": " << outcome.text();
    }
  });
}

TEST(B19_zero_size, no_keys_but_a_sink) {
  for_each_path({}, [](const std::string& path) {
    Case c(path + "q_heads=2 q_len=3 kv_len=0 head_dim=8 sink");
    c.fill("sink", [](const int64_t* i) { return 1.5 + number(i[0]); });
    run_and_check(c);
    expect_out(c, [](auto...) { return 0.0; });
    expect_lse(c, [](int64_t, int64_t h, int64_t) { return 1.5 + number(h); });
  });
}

TEST(B35_window_edge, counts_the_token_itself) {
  for_each_path({}, [](const std::string& path) {
    const double wanted[] = {0, .5, 1, 2, 3, 4};
    Case all(path + "q_len=6 head_dim=8 window=2,0");
    all.fill("q", 0);
    fill_tokens(all, "v", number);
    run_and_check(all);
    expect_out(all, [&](int64_t, int64_t, int64_t i, int64_t) { return wanted[i]; });
    expect_lse(all,
               [](int64_t, int64_t, int64_t i) { return std::log(std::min(number(i) + 1, 3.0)); });
    Case last(path + "q_len=1 kv_len=6 head_dim=8 window=2,0");
    last.fill("q", 0);
    fill_tokens(last, "v", number);
    run_and_check(last);
    expect_out(last, [](auto...) { return 4.0; });
  });
}

TEST(B35_window_edge, at_the_edges_of_tiles) {
  for (int left : {0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129}) {
    for_each_path(
        {.dtypes = {"f32", "f64", "f16"}, .splits = {0, 2}}, [&](const std::string& path) {
          Case c(path + "q_len=5 kv_len=300 head_dim=3 window=" + std::to_string(left) + ",0");
          c.fill("q", 0);
          fill_tokens(c, "v", number);
          run_and_check(c);
          expect_out(c, [&](int64_t, int64_t, int64_t i, int64_t) {
            return number(295 + i) - left / 2.0;
          });
        });
  }
}

TEST(B35_window_edge, leading_tokens_stay_visible) {
  for_each_path({}, [](const std::string& path) {
    Case c(path + "q_len=2 kv_len=200 head_dim=3 window=1,0 sink_tokens=2");
    c.fill("q", 0);
    fill_tokens(c, "v", [](int64_t j) { return j < 2 ? 4.0 : j >= 197 ? 8.0 : 100.0; });
    run_and_check(c);
    expect_out(c, [](auto...) { return 6.0; });
    expect_lse(c, [](auto...) { return std::log(4); });
  });
}

TEST(B37_options_ignored, window_alone_and_lengths_alone) {
  for_each_path({}, [](const std::string& path) {
    Case a(path + "q_len=5 head_dim=8 window=0,1");
    a.fill("q", 0);
    fill_tokens(a, "v", number);
    run_and_check(a);
    const double wanted[] = {.5, 1.5, 2.5, 3.5, 4};
    expect_out(a, [&](int64_t, int64_t, int64_t i, int64_t) { return wanted[i]; });
    Case b(path + "q_len=5 head_dim=8 seqused_kv=2");
    b.fill("q", 0);
    fill_tokens(b, "v", number);
    run_and_check(b);
    expect_out(b, [](auto...) { return .5; });
    expect_lse(b, [](auto...) { return std::log(2); });
    Case q_only(path + "batch=2 q_len=5 head_dim=8 seqused_q=2,5");
    q_only.fill("v", 1);
    run_and_check(q_only);
    expect_out(q_only,
               [](int64_t b, int64_t, int64_t i, int64_t) { return b == 0 && i >= 2 ? 0.0 : 1.0; });
  });
}

TEST(B39_strides, the_same_bits_in_every_layout) {
  for (const char* shape :
       {"batch=2 q_heads=2 q_len=5 kv_len=5 head_dim=8",
        "batch=2 q_heads=4 kv_heads=2 q_len=19 kv_len=70 head_dim=5 head_dim_v=7 causal bias"}) {
    for_each_path({.dtypes = kAllTypes, .splits = {0, 2}}, [&](const std::string& path) {
      Case packed(path + shape);
      run_and_check(packed);
      for (const char* layout : {"bshd", "bhds", "padded", "strided", "negative"}) {
        Case c(path + shape + " layout=" + layout);
        run_and_check(c);
        EXPECT_EQ(c.values("out"), packed.values("out")) << layout;
        EXPECT_EQ(c.values("lse"), packed.values("lse")) << layout;
      }
      Case shared(path + shape + " layout=broadcast");
      run_and_check(shared);
    });
  }
}

TEST(B39_strides, channels_far_apart) {
  for_each_path({}, [](const std::string& path) {
    Case c(path + "batch=2 q_len=3 kv_len=5 head_dim=8 layout=bhds");
    c.fill("q", 0);
    c.fill("v", [](const int64_t* i) { return 10 * number(i[2]) + number(i[3]); });
    run_and_check(c);
    expect_out(c, [](int64_t, int64_t, int64_t, int64_t d) { return 20 + number(d); });
  });
}

TEST(B41_bias_layout, every_broadcast_shape) {
  for (const char* pattern : {"11qk", "1hqk", "b1qk", "bhqk", "b11k", "bh1k", "111k"}) {
    for_each_path({}, [&](const std::string& path) {
      Case c(path + "batch=2 q_heads=3 q_len=2 kv_len=4 head_dim=8 bias=" + pattern);
      c.fill("q", 0);
      c.fill("v", [](const int64_t* i) { return 10 * number(i[0]) + number(i[2]); });
      c.fill("bias", [](const int64_t* i) { return i[3] == i[0] + 1 ? 0 : -kInf; });
      run_and_check(c);
      const bool per_batch = pattern[0] == 'b';
      expect_out(c, [&](int64_t b, auto...) { return b == 0 ? 1.0 : per_batch ? 12.0 : 11.0; });
      expect_lse(c, [](auto...) { return 0.0; });
    });
  }
}

TEST(B41_bias_layout, f32_beside_16_bits) {
  for_each_path({.dtypes = {"bf16", "f16"}}, [](const std::string& path) {
    Case c(path + "q_len=33 kv_len=65 head_dim=8 bias bias_dtype=f32");
    run_and_check(c);
  });
}

// A lazily committed mapping: large addresses, few pages.
class Mapping {
 public:
  explicit Mapping(size_t bytes)
      : bytes_(bytes),
        base_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Mapping() {
    if (base_ != MAP_FAILED) munmap(base_, bytes_);
  }
  void* base() const { return base_; }
  bool ok() const { return base_ != MAP_FAILED; }

 private:
  size_t bytes_;
  void* base_;
};

TEST(B45_offsets_beyond_32_bits, rows_of_k_and_v) {
  for (const std::string& isa : isa_levels()) {
    for (int64_t stride : {(int64_t{1} << 31) + 64, (int64_t{1} << 32) + 64}) {
      Mapping memory(static_cast<size_t>((2 * stride + 64) * 2));
      ASSERT_TRUE(memory.ok());
      Case c("dtype=f16 q_len=2 kv_len=3 head_dim=64 isa=" + isa);
      c.fill("q", 0);
      const double rows[] = {1, 2, 6};
      for (int64_t j = 0; j < 3; ++j) {
        for (int64_t d = 0; d < 64; ++d) store(RUNMAX_F16, memory.base(), j * stride + d, rows[j]);
      }
      c.problem().k.stride[2] = c.problem().v.stride[2] = stride;
      c.args().k = c.args().v = memory.base();
      run_and_check(c);
      expect_out(c, [](auto...) { return 3.0; });
      expect_lse(c, [](auto...) { return std::log(3); });
    }
  }
}

TEST(B45_offsets_beyond_32_bits, rows_of_the_bias) {
  for (const std::string& isa : isa_levels()) {
    const int64_t stride = (int64_t{1} << 31) + 8;
    Mapping memory(static_cast<size_t>((2 * stride + 8) * 2));
    ASSERT_TRUE(memory.ok());
    Case c("dtype=f16 q_len=3 kv_len=4 head_dim=8 bias=11qk isa=" + isa);
    c.fill("q", 0);
    fill_tokens(c, "v", number);
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < 4; ++j) {
        store(RUNMAX_F16, memory.base(), i * stride + j, i == j ? 0 : -kInf);
      }
    }
    c.problem().bias.stride[2] = stride;
    c.args().bias = memory.base();
    run_and_check(c);
    expect_out(c, [](int64_t, int64_t, int64_t i, int64_t) { return number(i); });
  }
}

TEST(B47_launch_limits, more_than_65535_heads_or_batch_entries) {
  for (const char* shape : {"batch=65537", "q_heads=65537", "q_heads=65537 kv_heads=1"}) {
    Case c(std::string(shape) + " q_len=1 kv_len=1 head_dim=8");
    c.fill("v", [](const int64_t* i) { return number((i[0] + i[1]) % 251); });
    run_and_check(c);
    const bool shared = c.spec().kv_heads == 1 && c.spec().q_heads > 1;
    expect_out(c,
               [&](int64_t b, int64_t h, auto...) { return number((b + (shared ? 0 : h)) % 251); });
  }
}

TEST(B49_gqa_map, heads_that_do_not_divide_are_refused) {
  const int64_t pairs[][2] = {{3, 2}, {33, 2}, {2, 4}, {4, 0}};
  for (const auto& [q_heads, kv_heads] : pairs) {
    for (const char* more : {"", " packed batch=2"}) {
      const ProblemSpec spec = problem("q_len=3 head_dim=8 q_heads=" + std::to_string(q_heads) +
                                       " kv_heads=" + std::to_string(kv_heads) + more);
      const runmax_problem p = make_problem(spec);
      EXPECT_EQ(runmax_validate(&p), RUNMAX_INVALID_ARGUMENT);
      const std::string message = runmax_last_error();
      EXPECT_NE(message.find(std::to_string(q_heads)), std::string::npos) << message;
      EXPECT_NE(message.find(std::to_string(kv_heads)), std::string::npos) << message;
      runmax_plan* plan = nullptr;
      EXPECT_EQ(runmax_plan_create(&p, cpu_device(), &plan), RUNMAX_INVALID_ARGUMENT);
      EXPECT_EQ(plan, nullptr);
    }
  }
}

TEST(B49_gqa_map, every_head_reads_its_group) {
  for_each_path({}, [](const std::string& path) {
    Case c(path + "q_heads=12 kv_heads=4 q_len=2 kv_len=70 head_dim=8");
    c.fill("v", [](const int64_t* i) { return number(i[1] + 1); });
    run_and_check(c);
    expect_out(c, [](int64_t, int64_t h, auto...) { return number(h / 3 + 1); });
  });
}

TEST(B65_softcap, comes_before_the_mask) {
  for (const char* how : {"causal", "window=-1,0", "mask=11qk", "bias=11qk"}) {
    for (const char* cap : {"1", "0.1"}) {
      for_each_path({}, [&](const std::string& path) {
        Case c(path + "q_len=2 head_dim=8 softcap=" + cap + " " + how);
        c.fill("q", 0);
        fill_tokens(c, "v", [](int64_t j) { return 3 + 2 * number(j); });
        if (c.has("mask")) c.fill("mask", [](const int64_t* i) { return i[3] <= i[2]; });
        if (c.has("bias"))
          c.fill("bias", [](const int64_t* i) { return i[3] <= i[2] ? 0 : -kInf; });
        run_and_check(c);
        expect_out(c, [](int64_t, int64_t, int64_t i, int64_t) { return 3 + number(i); });
      });
    }
  }
}

TEST(B67_softcap, is_c_tanh_of_s_over_c) {
  for_each_path({}, [](const std::string& path) {
    Case c(path + "q_len=1 kv_len=2 head_dim=1 scale=1 softcap=2 fill=ones");
    c.fill("k", [](const int64_t* i) { return i[2] == 0 ? 2.0 : 0.0; });
    c.fill("v", [](const int64_t* i) { return i[2] == 0 ? 1.0 : 0.0; });
    run_and_check(c);
    const double weight = std::exp(2 * std::tanh(1));  // 0.821007 and 1.720411 in the report
    expect_out(c, [&](auto...) { return weight / (weight + 1); });
    expect_lse(c, [&](auto...) { return std::log(weight + 1); });
  });
}

TEST(B69_alibi, measures_from_the_absolute_position) {
  for (const char* heads : {"q_heads=1", "q_heads=4 kv_heads=1"}) {
    for_each_path({}, [&](const std::string& path) {
      for (int64_t rows : {1, 4}) {
        Case c(path + "kv_len=4 head_dim=8 causal alibi q_len=" + std::to_string(rows) + " " +
               heads);
        c.fill("q", 0);
        c.fill("alibi_slopes", std::log(2));
        fill_tokens(c, "v", number);
        run_and_check(c);
        for (int64_t h = 0; h < c.spec().q_heads; ++h) {
          const double tolerance = relative_tolerance(c.spec().dtype);
          expect_near(c.at("out", {0, h, rows - 1, 3}), 34.0 / 15, tolerance, "out");
          expect_near(c.at("lse", {0, h, rows - 1}), std::log(15.0 / 8), 1e-6, "lse");
        }
      }
    });
  }
}

TEST(B75_mla, v_is_a_view_of_k) {
  for (int64_t keys : {100, 577, 700}) {
    const std::vector<std::string> types = keys > 256
                                               ? std::vector<std::string>{"f32", "f16"}
                                               : std::vector<std::string>{"f32", "bf16", "f16"};
    for_each_path({.dtypes = types, .splits = {0, 3}}, [&](const std::string& path) {
      Case c(path + "q_heads=16 kv_heads=1 q_len=1 head_dim=576 head_dim_v=512 v_in_k kv_len=" +
             std::to_string(keys));
      c.fill("q", 0);
      fill_tokens(c, "k", number);
      run_and_check(c);
      expect_out(c, [&](auto...) { return (number(keys) - 1) / 2; });
      expect_lse(c, [&](auto...) { return std::log(number(keys)); });
    });
  }
}

TEST(B77_head_width, any_width_and_the_true_default_scale) {
  for (int64_t dim : {1, 2, 3, 5, 7, 9, 15, 17, 63, 65, 257}) {
    for_each_path({}, [&](const std::string& path) {
      Case c(path + "q_len=3 kv_len=2 fill=ones head_dim=" + std::to_string(dim));
      c.fill("k", [](const int64_t* i) { return i[2] == 0 ? 1.0 : 0.0; });
      fill_tokens(c, "v", [](int64_t j) { return j == 0 ? 1.0 : 0.0; });
      run_and_check(c);
      const double root = std::sqrt(number(dim));
      expect_out(c, [&](auto...) { return 1 / (1 + std::exp(-root)); });
      expect_lse(c, [&](auto...) { return std::log(std::exp(root) + 1); });
    });
  }
}

TEST(B79_scale, zero_gives_equal_weights) {
  for (double key : {7.0, 1e4, 6e4}) {
    for (const char* scale : {"0", "-0"}) {
      for_each_path({}, [&](const std::string& path) {
        Case c(path + "q_len=3 head_dim=64 causal scale=" + scale);
        c.fill("q", 5);
        c.fill("k", key);
        fill_tokens(c, "v", [](int64_t j) { return 3 * (number(j) + 1); });
        run_and_check(c);
        expect_out(c, [](int64_t, int64_t, int64_t i, int64_t) { return 3 + 1.5 * number(i); });
        expect_lse(c, [](int64_t, int64_t, int64_t i) { return std::log(number(i) + 1); });
      });
    }
  }
}

TEST(B79_scale, negative_scale_turns_the_order_round) {
  for_each_path({}, [](const std::string& path) {
    for (const char* scale : {"-1", "-0.125", "-8"}) {
      Case c(path + "q_len=17 kv_len=140 head_dim=16 causal sink lse_lo scale=" + scale);
      run_and_check(c);
    }
  });
}

TEST(B81_tail_tiles, growing_bias_at_ragged_lengths) {
  for (int64_t length : {129, 1025}) {
    for_each_path({.dtypes = kAllTypes, .splits = {0, 3}}, [&](const std::string& path) {
      const bool bf16 = path.find("bf16") != std::string::npos;
      Case c(path + "causal head_dim=3 bias=11qk q_len=" + std::to_string(length) +
             (bf16 ? " bias_dtype=f32" : ""));
      c.fill("q", 0);
      fill_tokens(c, "v", [](int64_t j) { return j == 0 ? 1.0 : 0.0; });
      c.fill("bias", [](const int64_t* i) { return number(i[2] - i[3]); });
      run_and_check(c);
      expect_out(c, [](int64_t, int64_t, int64_t i, int64_t) {
        return (1 - std::exp(-1)) / (1 - std::exp(-number(i + 1)));
      });
      expect_near(c.at("lse", {0, 0, length - 1}), number(length) - 1 + 0.458675, 1e-6, "lse");
    });
  }
}

TEST(B89_threads_and_bounds, the_same_bits_for_any_number) {
  for (int64_t length : {31, 32, 33, 64, 65, 130}) {
    for_each_path({.dtypes = {"f32", "f16"}, .splits = {0}}, [&](const std::string& path) {
      std::vector<double> first;
      for (int threads : {1, 2, 3, 4, 7, 16}) {
        const std::string text = path + "q_heads=3 head_dim=64 q_len=" + std::to_string(length) +
                                 " threads=" + std::to_string(threads);
        Case counted(text);
        counted.fill("q", 0);
        fill_tokens(counted, "v", number);
        run_and_check(counted);
        expect_out(counted, [&](auto...) { return (number(length) - 1) / 2; });
        Case random(text);
        run_and_check(random);
        if (first.empty()) first = random.values("out");
        EXPECT_EQ(random.values("out"), first) << threads << " threads";
      }
    });
  }
}

TEST(B91_devices, all_ones) {
  for_each_path({.dtypes = kAllTypes, .splits = {0}}, [](const std::string& path) {
    Case c(path + "batch=4 q_heads=16 q_len=32 head_dim=64 fill=ones");
    ASSERT_TRUE(execute(c, /*through_device_memory=*/true).ok());
    expect_out(c, [](auto...) { return 1.0; });
  });
}

}  // namespace
}  // namespace runmax::testing
