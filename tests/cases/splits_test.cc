// Public bug reports about splits along kv, merging, sinks and the base of lse.
#include "tests/cases/case_test.h"

namespace runmax::testing {
namespace {

TEST(B29_state_merge, empty_states_stay_empty) {
  for (const std::string& dtype : kAllTypes) {
    for (const char* partials : {"0", "1", "2", "5"}) {
      for (const char* shape : {"batch=2 q_heads=3 q_len=4", "packed batch=3 q_heads=2 q_len=9"}) {
        Case c("direction=merge head_dim=64 dtype=" + dtype + " partials=" + partials + " " +
               shape);
        c.fill("partial_lse", -kInf);
        c.fill("partial_out", std::nan(""));  // counts for nothing
        run_and_check(c);
        for (double x : c.values("out")) EXPECT_EQ(x, 0);
        for (double x : c.values("lse")) EXPECT_EQ(x, -kInf);
      }
    }
  }
}

TEST(B29_state_merge, one_empty_state_changes_nothing) {
  for (const std::string& dtype : kAllTypes) {
    Case c("direction=merge head_dim=5 q_len=3 partials=3 dtype=" + dtype);
    c.fill("partial_lse", [](const int64_t* i) { return i[0] == 1 ? 0.75 : -kInf; });
    c.fill("partial_out", [](const int64_t* i) { return i[0] == 1 ? 3.5 : kInf; });
    run_and_check(c);
    expect_out(c, [](auto...) { return 3.5; });
    expect_lse(c, [](auto...) { return 0.75; });
  }
}

TEST(B29_state_merge, random_parts_in_every_layout) {
  for (const std::string& dtype : kAllTypes) {
    for (const char* layout : {"bhsd", "bshd", "padded", "strided", "negative"}) {
      for (const char* shape :
           {"batch=2 q_heads=3 q_len=7 partials=4 head_dim=19", "q_len=1 partials=17 head_dim=3",
            "packed batch=2 q_heads=2 q_len=5 partials=3 head_dim=8"}) {
        Case c("direction=merge dtype=" + dtype + " layout=" + layout + " " + shape);
        run_and_check(c);
      }
    }
  }
}

// Attention over keys [begin, end) of a whole problem: a view of its tensors.
struct Part {
  Part(const Case& whole, int64_t begin, int64_t end) : outputs(whole.problem(), whole.args()) {
    runmax_problem& p = outputs.problem;
    p.k.shape[2] = p.v.shape[2] = end - begin;
    const auto shift = [&](const void* base, const runmax_tensor& t, int d) {
      return static_cast<const std::byte*>(base) + begin * t.stride[d] * size_of(t.dtype);
    };
    outputs.args.k = shift(outputs.args.k, p.k, 2);
    outputs.args.v = shift(outputs.args.v, p.v, 2);
    const Outcome outcome = execute(p, outputs.args, device_for(whole.spec()));
    EXPECT_TRUE(outcome.ok()) << outcome.text();
  }
  OutputCopy outputs;
};

// The parts' results in one merge problem.
void merge_parts(const Case& whole, const std::vector<int64_t>& cuts, Case& merged) {
  for (size_t n = 0; n + 1 < cuts.size(); ++n) {
    const Part part(whole, cuts[n], cuts[n + 1]);
    const int64_t rows =
        static_cast<int64_t>(part.outputs.lse.size()) / size_of(part.outputs.problem.lse.dtype);
    const int64_t dims = whole.spec().head_dim_v, q_len = whole.spec().q_len,
                  heads = whole.spec().q_heads;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t b = row / q_len / heads, h = row / q_len % heads, i = row % q_len;
      const int64_t at = static_cast<int64_t>(n);
      merged.set("partial_lse", {at, b, h, i},
                 load(part.outputs.problem.lse.dtype, part.outputs.lse.data(), row));
      for (int64_t d = 0; d < dims; ++d) {
        merged.set("partial_out", {at, b, h, i, d},
                   load(part.outputs.problem.out.dtype, part.outputs.out.data(), row * dims + d));
      }
    }
  }
}

TEST(B31_lse_base, is_natural_and_merges) {
  for_each_path({}, [](const std::string& path) {
    Case whole(path + "q_len=2 kv_len=8 head_dim=8");
    whole.fill("q", 0);
    fill_tokens(whole, "v", [](int64_t j) { return j < 5 ? 1.0 : 9.0; });
    run_and_check(whole);
    expect_out(whole, [](auto...) { return 4.0; });
    expect_lse(whole, [](auto...) { return std::log(8); });
    Case merged("direction=merge partials=2 q_len=2 head_dim=8 dtype=" +
                std::string(name_of(static_cast<runmax_dtype>(whole.spec().dtype))));
    merge_parts(whole, {0, 5, 8}, merged);
    run_and_check(merged);
    expect_out(merged, [](auto...) { return 4.0; });
    expect_lse(merged, [](auto...) { return std::log(8); });
  });
}

TEST(B31_lse_base, merged_parts_equal_the_whole) {
  for (const char* dtype : {"f32", "f64"}) {
    const std::string shape = std::string(" batch=2 q_heads=2 q_len=3 head_dim=16 dtype=") + dtype;
    Case whole("kv_len=200" + shape);
    run_and_check(whole);
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>{0, 100, 200}, {0, 1, 200}, {0, 0, 64, 64, 65, 200, 200}}) {
      Case merged("direction=merge partials=" + std::to_string(cuts.size() - 1) + shape);
      merge_parts(whole, cuts, merged);
      run_and_check(merged);
      // Two gates apart at most: each is within its own of the truth.
      const auto oracle = expected(whole.problem(), whole.args());
      const auto merged_values = merged.values("out");
      for (size_t n = 0; n < merged_values.size(); ++n) {
        EXPECT_NEAR(merged_values[n], oracle.out[n],
                    2 * out_gate(whole.problem(), oracle, static_cast<int64_t>(n)));
      }
    }
  }
}

TEST(B59_split_kv, by_the_lengths_in_use) {
  for_each_path({.dtypes = kAllTypes, .splits = {0, 1, 2, 3, 4, 8, 16}},
                [](const std::string& path) {
                  Case a(path + "q_len=1 kv_len=1024 head_dim=8 seqused_kv=3");
                  a.fill("q", 0);
                  for (int64_t d = 0; d < 8; ++d) {
                    a.set("v", {0, 0, 0, d}, 1);
                    a.set("v", {0, 0, 1, d}, 2);
                    a.set("v", {0, 0, 2, d}, 6);
                  }
                  run_and_check(a);
                  expect_out(a, [](auto...) { return 3.0; });
                  expect_lse(a, [](auto...) { return std::log(3); });

                  Case b(path + "q_len=1 kv_len=1025 head_dim=8 seqused_kv=1024");
                  b.fill("q", 0);
                  for (int64_t j = 0; j < 1024; ++j) {
                    for (int64_t d = 0; d < 8; ++d) b.set("v", {0, 0, j, d}, j == 1023 ? 1024 : 0);
                  }
                  run_and_check(b);
                  expect_out(b, [](auto...) { return 1.0; });
                  expect_lse(b, [](auto...) { return std::log(1024); });
                });
}

TEST(B59_split_kv, ragged_batches_and_many_splits) {
  for_each_path({.dtypes = kAllTypes, .splits = {1, 2, 5, 64, 1000}}, [](const std::string& path) {
    Case c(path +
           "batch=5 q_heads=4 kv_heads=2 q_len=3 kv_len=300 head_dim=24 causal "
           "seqused_kv=0,1,64,299,300 seqused_q=3,1,0,2,3 sink lse_lo");
    run_and_check(c);
  });
}

TEST(B61_sinks, count_once_for_every_split_count) {
  for (const char* shape : {"kv_len=4", "kv_len=300 window=3,0", "kv_len=300 seqused_kv=4"}) {
    for_each_path({.dtypes = kAllTypes, .splits = {0, 1, 2, 4, 8}}, [&](const std::string& path) {
      Case c(path + "q_heads=2 q_len=1 head_dim=8 sink " + shape);
      c.fill("q", 0);
      for_each_element(c.problem().v, [&](const int64_t* i, int64_t) {
        if (i[2] < c.kv_used(0)) c.set("v", {i[0], i[1], i[2], i[3]}, 1);
      });
      c.fill("sink", 0);
      run_and_check(c);
      expect_out(c, [](auto...) { return 0.8; });
      expect_lse(c, [](auto...) { return std::log(5); });
    });
  }
}

TEST(B61_sinks, of_every_size) {
  for (double sink : {-1e4, -80.0, 0.0, 80.0, 1e4}) {
    for_each_path({}, [&](const std::string& path) {
      Case c(path + "q_heads=2 q_len=5 kv_len=200 head_dim=8 sink lse_lo causal");
      c.fill("sink", sink);
      run_and_check(c);
    });
  }
}

TEST(B63_sinks, take_their_share) {
  for_each_path({}, [](const std::string& path) {
    Case c(path + "q_heads=2 q_len=4 kv_len=3 head_dim=1 sink fill=ones");
    c.fill("q", 0);
    c.fill("sink", 0);
    run_and_check(c);
    expect_out(c, [](auto...) { return 0.75; });
    expect_lse(c, [&](auto...) { return std::log(4); });
  });
}

}  // namespace
}  // namespace runmax::testing
