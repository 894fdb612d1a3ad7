// Changes of the problem that must leave the result, or change it in a known way.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>

#include "testing/element.h"
#include "tests/properties/properties.h"

namespace runmax::testing {
namespace {

// 0, ..., n - 1 in any order.
std::vector<int64_t> permutation(int64_t n, uint64_t seed) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const int64_t other = random_below(seed, static_cast<uint64_t>(i), i + 1);
    order[i] = order[other];
    order[other] = i;
  }
  return order;
}

RC_GTEST_PROP(Results, permuting_keys_with_all_that_belongs_to_them, ()) {
  const ProblemSpec spec = *problems(Options::kAnyOrder);
  const Case c(spec);
  const std::vector<int64_t> order = permutation(spec.kv_len, spec.data_seed);
  Case permuted(spec);
  const auto permute = [&](const char* name, int key_dim) {
    if (!c.has(name) || c.buffer(name).tensor.shape[key_dim] != spec.kv_len) return;
    permuted.fill(name, [&](const int64_t* index) {
      int64_t source[RUNMAX_MAX_RANK];
      std::copy_n(index, RUNMAX_MAX_RANK, source);
      source[key_dim] = order[static_cast<size_t>(index[key_dim])];
      return element(c, name, source);
    });
  };
  permute("k", 2);
  permute("v", 2);
  permute("bias", 3);
  permute("mask", 3);
  permute("segment_ids_kv", 1);
  run(permuted);
  require_within_gate(View(c, permuted), expected(c.problem(), c.args()));
}

RC_GTEST_PROP(Results, zeros_at_the_end_of_head_dim, ()) {
  ProblemSpec spec = *problems(Options::kAll);
  if (!spec.scale_given) {
    spec.scale_given = true;
    spec.scale = 1 / std::sqrt(static_cast<double>(spec.head_dim));
  }
  const Case c(spec);
  spec.head_dim += *rc::gen::inRange<int64_t>(1, 40);
  Case wide(spec);
  wide.fill("q", 0);
  wide.fill("k", 0);
  embed(c, wide);
  run(wide);
  require_within_gate(View(c, wide), expected(c.problem(), c.args()));
}

RC_GTEST_PROP(Results, more_channels_of_v, ()) {
  ProblemSpec spec = *problems(Options::kAll);
  const Case c(spec);
  spec.head_dim_v += *rc::gen::inRange<int64_t>(1, 40);
  Case wide(spec);
  embed(c, wide);
  run(wide);
  require_within_gate(View(c, wide), expected(c.problem(), c.args()));
}

// Rows, keys and batch entries beyond those of the problem, whatever they hold.
RC_GTEST_PROP(Results, larger_storage, ()) {
  ProblemSpec spec = *problems(Options::kAll);
  Case c(spec);
  run(c);
  spec.q_len += *rc::gen::inRange<int64_t>(0, 70);
  spec.kv_len += *rc::gen::inRange<int64_t>(0, 600);
  spec.batch += *rc::gen::inRange<int64_t>(0, 3);
  spec.threads = *rc::gen::inRange<int64_t>(1, 4);
  spec.layout = *rc::gen::elementOf(std::vector<std::string>{"bhsd", "padded", "negative"});
  spec.poison = *rc::gen::elementOf(std::vector<std::string>{"nan", "inf", "1e30"});
  spec.seqused_q.present = spec.seqused_kv.present = true;
  for (int64_t b = 0; b < spec.batch; ++b) {
    spec.seqused_q.values.push_back(b < c.spec().batch ? c.q_used(b) : spec.q_len);
    spec.seqused_kv.values.push_back(b < c.spec().batch ? c.kv_used(b) : spec.kv_len);
  }
  Case large(spec);
  if (large.has("block_index")) large.fill("block_index", -1);
  embed(c, large);
  run(large);
  const View view(c, large);
  require_within_gate(view, expected(c.problem(), c.args()));
  if (spec.batch_invariant) require_same_bits(View(c, c), view);
}

// Powers of two pass through every product, sum and rounding of normal numbers unchanged. What the
// smaller result lost to subnormal numbers is left out.
RC_GTEST_PROP(Results, scaling_v_scales_out, ()) {
  ProblemSpec spec = *problems(Options::kAll);
  if (spec.fill == "hostile") spec.fill = "normal";  // 100 * 2^6 may leave the range of F16
  Case c(spec);
  run(c);
  const double factor = std::ldexp(1.0, *rc::gen::inRange(1, 7));
  Case scaled(spec);
  scaled.fill("v", [&](const int64_t* index) { return factor * element(c, "v", index); });
  run(scaled);
  const double normal = spec.out_dtype == RUNMAX_F16 ? 0x1p-14 : 0x1p-100;
  for_each_element(c.problem().out, [&](const int64_t* index, int64_t) {
    const double out = element(c, "out", index);
    if (std::fabs(out) < normal) return;
    RC_ASSERT(element(scaled, "out", index) == factor * out);
  });
  for_each_element(c.problem().lse, [&](const int64_t* index, int64_t) {
    RC_ASSERT(element(scaled, "lse", index) == element(c, "lse", index));
  });
}

// All scores of a row move by one number: its weights stay, its lse moves with them.
RC_GTEST_PROP(Results, a_constant_added_to_a_bias_row_moves_lse_alone, ()) {
  ProblemSpec spec = *problems(Options::kAll);
  spec.bias = "bhqk";
  spec.bias_dtype = RUNMAX_F32;
  spec.sink = false;  // it does not move along
  const auto quarters = [&](uint64_t stream, uint64_t n, int64_t range) {
    return 0.25 * static_cast<double>(random_below(spec.data_seed + stream, n, 2 * range) - range);
  };
  uint64_t n = 0;
  Case c(spec);
  c.fill("bias", [&](const int64_t*) { return quarters(1, n++, 16); });
  run(c);
  const auto shift = [&](int64_t b, int64_t h, int64_t i) {
    return quarters(2, static_cast<uint64_t>((b * spec.q_heads + h) * spec.q_len + i), 400);
  };
  Case shifted(spec);
  shifted.fill("bias",
               [&](const int64_t* i) { return element(c, "bias", i) + shift(i[0], i[1], i[2]); });
  run(shifted);

  const reference::Forward before = expected(c.problem(), c.args());
  const reference::Forward after = expected(shifted.problem(), shifted.args());
  require_within_gate(View(shifted, shifted), after);
  int64_t at = 0;
  for_each_element(c.problem().out, [&](const int64_t* index, int64_t) {
    const double allowed =
        out_gate(c.problem(), before, at) + out_gate(shifted.problem(), after, at);
    const double x = element(c, "out", index), y = element(shifted, "out", index);
    RC_ASSERT(x == y || std::fabs(x - y) <= allowed);
    ++at;
  });
  int64_t row = 0;
  for_each_element(c.problem().lse, [&](const int64_t* index, int64_t) {
    const double allowed =
        lse_gate(c.problem(), before, row) + lse_gate(shifted.problem(), after, row);
    const double x = element(c, "lse", index) + shift(index[0], index[1], index[2]);
    const double y = element(shifted, "lse", index);
    RC_ASSERT(x == y || std::fabs(x - y) <= allowed);
    ++row;
  });
}

// num_splits is a matter of speed; with batch_invariant not of one bit.
RC_GTEST_PROP(Results, any_number_of_splits, ()) {
  ProblemSpec spec = *problems(Options::kAll);
  const Case whole(spec);
  const reference::Forward oracle = expected(whole.problem(), whole.args());
  if (spec.batch_invariant) {
    ProblemSpec one = spec;
    one.num_splits = 1;
    Case a(spec), b(one);
    run(a);
    run(b);
    require_within_gate(View(whole, a), oracle);
    require_same_bits(View(whole, a), View(whole, b));
  } else {
    spec.num_splits = *rc::gen::inRange<int64_t>(0, 40);
    Case split(spec);
    run(split);
    require_within_gate(View(whole, split), oracle);
  }
}

}  // namespace
}  // namespace runmax::testing
