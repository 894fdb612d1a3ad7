// Merging: the order and the grouping of the parts do not matter, and neither does where the keys
// of a problem were cut.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>

#include "testing/element.h"
#include "tests/properties/properties.h"

namespace runmax::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Parts are F32 or F64, since a merged part that is merged again was rounded. Their lse are small:
// the rounding of a large one would enter the weights of the second merge.
ProblemSpec merge_problem() {
  return *rc::gen::exec([] {
    const auto within = [](int64_t low, int64_t high) {
      return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(low, high + 1));
    };
    ProblemSpec s;
    s.direction = RUNMAX_MERGE;
    s.dtype = s.out_dtype = within(0, 1) == 0 ? RUNMAX_F32 : RUNMAX_F64;
    s.partials = within(1, 9);
    s.batch = within(1, 2);
    s.q_heads = s.kv_heads = within(1, 3);
    s.q_len = within(1, 20);
    s.head_dim_v = within(1, 40);
    s.isa = *rc::gen::elementOf(isa_levels());
    s.threads = within(1, 3);
    s.layout = *rc::gen::elementOf(std::vector<std::string>{"bhsd", "bshd", "strided", "negative"});
    s.data_seed = static_cast<uint64_t>(within(1, 1000));
    return s;
  });
}

// Copies part `from` of one case to part `to` of another.
void copy_part(const Case& source, int64_t from, Case& target, int64_t to) {
  for (const char* name : {"partial_out", "partial_lse"}) {
    target.fill(name, [&](const int64_t* index) {
      if (index[0] != to) return element(target, name, index);
      int64_t at[RUNMAX_MAX_RANK];
      std::copy_n(index, RUNMAX_MAX_RANK, at);
      at[0] = from;
      return element(source, name, at);
    });
  }
}

// The result of a merge as part `to` of another.
void copy_result(const Case& source, Case& target, int64_t to) {
  const auto copy = [&](const char* result, const char* part) {
    target.fill(part, [&](const int64_t* index) {
      return index[0] == to ? element(source, result, index + 1) : element(target, part, index);
    });
  };
  copy("out", "partial_out");
  copy("lse", "partial_lse");
}

RC_GTEST_PROP(Merge, the_order_of_parts_does_not_matter, ()) {
  const ProblemSpec spec = merge_problem();
  const Case c(spec);
  Case reversed(spec), rotated(spec);
  const int64_t turn = *rc::gen::inRange<int64_t>(0, spec.partials);
  for (int64_t n = 0; n < spec.partials; ++n) {
    copy_part(c, n, reversed, spec.partials - 1 - n);
    copy_part(c, n, rotated, (n + turn) % spec.partials);
  }
  run(reversed);
  run(rotated);
  const reference::Forward oracle = expected(c.problem(), c.args());
  require_within_gate(View(c, reversed), oracle);
  require_within_gate(View(c, rotated), oracle);
}

RC_GTEST_PROP(Merge, grouping_does_not_matter, ()) {
  ProblemSpec spec = merge_problem();
  const Case c(spec);
  const int64_t cut = *rc::gen::inRange<int64_t>(0, spec.partials + 1);
  ProblemSpec half = spec;
  half.partials = cut;
  Case first(half);
  for (int64_t n = 0; n < cut; ++n) copy_part(c, n, first, n);
  half.partials = spec.partials - cut;
  Case second(half);
  for (int64_t n = cut; n < spec.partials; ++n) copy_part(c, n, second, n - cut);
  run(first);
  run(second);
  half.partials = 2;
  Case both(half);
  copy_result(first, both, 0);
  copy_result(second, both, 1);
  run(both);
  require_within_gate(View(c, both), expected(c.problem(), c.args()));
}

RC_GTEST_PROP(Merge, parts_without_keys_change_no_bit, ()) {
  ProblemSpec spec = merge_problem();
  Case c(spec);
  run(c);
  spec.partials += *rc::gen::inRange<int64_t>(1, 4);
  Case more(spec);
  more.fill("partial_lse", -kInf);
  more.fill("partial_out", std::numeric_limits<double>::quiet_NaN());
  for (int64_t n = 0; n < c.spec().partials; ++n) copy_part(c, n, more, n);
  run(more);
  require_same_bits(View(c, c), View(c, more));
}

const void* advanced(const void* base, int64_t elements, runmax_dtype dtype) {
  if (base == nullptr) return nullptr;
  return static_cast<const std::byte*>(base) + elements * size_of(dtype);
}

// The problem over keys [begin, end) alone, its result written as part n of the merge.
void run_part(const Case& whole, int64_t begin, int64_t end, Case& merge, int64_t n) {
  runmax_problem p = whole.problem();
  runmax_args a = whole.args();
  const int64_t off =
      p.diagonal_alignment == RUNMAX_ALIGN_TOP_LEFT ? 0 : whole.spec().kv_len - whole.spec().q_len;
  const auto cut = [&](runmax_tensor& t, const void*& pointer, int dim) {
    if (t.dtype == RUNMAX_DTYPE_NONE || t.shape[dim] != whole.spec().kv_len) return;
    pointer = advanced(pointer, begin * t.stride[dim], t.dtype);
    t.shape[dim] = end - begin;
  };
  cut(p.k, a.k, 2);
  cut(p.v, a.v, 2);
  cut(p.bias, a.bias, 3);
  cut(p.mask, a.mask, 3);
  const void* ids = a.segment_ids_kv;
  cut(p.segment_ids_kv, ids, 1);
  a.segment_ids_kv = static_cast<const int32_t*>(ids);
  const std::vector<int32_t> offsets(static_cast<size_t>(whole.spec().batch),
                                     static_cast<int32_t>(off - begin));
  runmax_tensor_init(&p.diagonal_offset, RUNMAX_I32, 1, &whole.spec().batch);
  a.diagonal_offset = offsets.data();
  p.sink_tokens = std::max<int64_t>(0, p.sink_tokens - begin);
  if (n != 0) {  // the sink counts once
    p.sink = {};
    a.sink = nullptr;
  }
  p.num_splits = 0;
  p.lse_lo = {};

  const Buffer& out = merge.buffer("partial_out");
  const Buffer& lse = merge.buffer("partial_lse");
  for (int d = 0; d < 4; ++d) p.out.stride[d] = out.tensor.stride[d + 1];
  for (int d = 0; d < 3; ++d) p.lse.stride[d] = lse.tensor.stride[d + 1];
  a.out = const_cast<void*>(advanced(out.pointer(), n * out.tensor.stride[0], p.out.dtype));
  a.lse = const_cast<void*>(advanced(lse.pointer(), n * lse.tensor.stride[0], p.lse.dtype));
  a.lse_lo = nullptr;
  run(p, a, device_for(whole.spec()));
}

RC_GTEST_PROP(Merge, attention_over_cut_keys_is_attention_over_all, ()) {
  ProblemSpec spec = *problems(Options::kPositional);
  spec.out_dtype = spec.dtype == RUNMAX_F64 ? RUNMAX_F64 : RUNMAX_F32;
  spec.lse_lo = false;
  if (spec.fill == "huge") spec.fill = "normal";  // lse is rounded in between
  const Case whole(spec);
  const std::vector<int64_t> cuts = *rc::gen::container<std::vector<int64_t>>(
      rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(0, spec.kv_len + 1)));
  std::vector<int64_t> ends(cuts.begin(), cuts.begin() + std::min<ptrdiff_t>(5, std::ssize(cuts)));
  ends.push_back(spec.kv_len);
  std::sort(ends.begin(), ends.end());

  ProblemSpec merging;
  merging.direction = RUNMAX_MERGE;
  merging.partials = std::ssize(ends);
  merging.dtype = merging.out_dtype = spec.out_dtype;
  merging.batch = spec.batch;
  merging.q_heads = merging.kv_heads = spec.q_heads;
  merging.q_len = spec.q_len;
  merging.head_dim_v = spec.head_dim_v;
  merging.isa = spec.isa;
  Case merge(merging);
  for (size_t n = 0; n < ends.size(); ++n) {
    run_part(whole, n == 0 ? 0 : ends[n - 1], ends[n], merge, static_cast<int64_t>(n));
  }
  run(merge);
  require_within_gate(View(whole, merge), expected(whole.problem(), whole.args()));
}

}  // namespace
}  // namespace runmax::testing
