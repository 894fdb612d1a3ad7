// The slow path of the tensor-core forward kernels: a block of rows again, pair by pair, in double.
//
// A matrix product cannot leave out a pair, and 0 * NaN is NaN: what an invisible key holds may
// reach a row through it, and a dot product may overflow on the way to a representable score. A
// block with a non-finite result is therefore recomputed here, where invisible pairs are skipped.
// One warp takes a row: its lanes share the keys for the scores, and the columns for the product.
#pragma once

#include "cuda/forward_params.h"
#include "cuda/numeric.cuh"
#include "policy/sequence.h"

namespace runmax::cuda {

// The state of one row over keys [kv_begin, kv_end). Lane l holds columns l, l + 32, ... of acc.
template <int kMaxColumns>
struct ExactRow {
  double acc[kMaxColumns / 32];
  double max;
  double sum;
  bool seen;
};

template <class Element, int kMaxColumns>
__device__ inline ExactRow<kMaxColumns> exact_row(const ForwardParams& p, const Sequence& s,
                                                  int64_t head, int64_t q, int64_t kv_begin,
                                                  int64_t kv_end) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto visibility = policy::visibility_of(p, s);
  const auto data_mask = policy::data_mask_of(p, s, head);
  const auto dropout = policy::dropout_of(p);
  const int64_t kv_head = head / p.group_size;
  policy::Score<double> score{};
  score.scale = p.scale;
  score.softcap = p.softcap;
  score.has_softcap = p.softcap > 0;
  score.has_bias = p.bias.present();
  score.has_alibi = p.alibi_slopes.present();
  if (score.has_alibi) {
    score.alibi_slope =
        load_scalar<double>(p.alibi_slopes.dtype, p.alibi_slopes.pointer,
                            s.batch * p.alibi_slopes.batch + head * p.alibi_slopes.head);
  }
  const Element* q_row =
      static_cast<const Element*>(p.q.pointer) + policy::q_row_offset(p.q, s, head, q);

  ExactRow<kMaxColumns> row{};
  row.max = kMinusInfinity<double>;
  const int64_t lo = visibility.lo(q);
  const int64_t hi = visibility.hi(q) < kv_end ? visibility.hi(q) : kv_end;
  int64_t begin = kv_begin;
  if (visibility.sink_tokens <= begin && lo > begin) begin = lo;
  for (int64_t first = begin; first < hi; first += 32) {
    const int64_t key = first + lane;
    bool visible = key < hi && visibility.keep(q, key) && data_mask.keep(q, key);
    double bias = 0;
    if (visible && score.has_bias) {
      bias = load_scalar<double>(
          p.bias.dtype, p.bias.pointer,
          s.batch * p.bias.batch + head * p.bias.head + q * p.bias.row + key * p.bias.column);
      visible = bias != kMinusInfinity<double>;
    }
    double x = kMinusInfinity<double>;
    if (visible) {
      const Element* k_row =
          static_cast<const Element*>(p.k.pointer) + policy::kv_row_offset(p.k, s, kv_head, key);
      double dot = 0;
      for (int64_t d = 0; d < p.head_dim; ++d) {
        dot += load_as<double>(q_row + d * p.q.column) * load_as<double>(k_row + d * p.k.column);
      }
      const double distance = static_cast<double>(q + s.offset - key);
      x = score.forward(dot, fabs(distance), bias);
    }
    uint32_t visible_lanes = __ballot_sync(0xffffffffu, visible);
    if (visible_lanes == 0) continue;
    row.seen = true;
    double top = x;
    for (int step = 16; step > 0; step /= 2) {
      top = fmax(top, __shfl_xor_sync(0xffffffffu, top, step));
    }
    const double new_max = fmax(row.max, top);
    const double subtract = safe_max(new_max);
    const double alpha = row.max == kMinusInfinity<double> ? 0.0 : exp(row.max - subtract);
    double weight = visible ? exp(x - subtract) : 0.0;
    row.max = new_max;
    double sum = weight;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    row.sum = row.sum * alpha + sum;
    if (dropout.active) {
      const auto words = dropout.words(static_cast<uint32_t>(s.batch * p.q_heads + head),
                                       static_cast<uint32_t>(q), static_cast<uint32_t>(key / 4));
      if (!dropout.keep(words.word[key % 4])) weight = 0;
    }
#pragma unroll
    for (int i = 0; i < kMaxColumns / 32; ++i) row.acc[i] *= alpha;
    while (visible_lanes != 0) {
      const int from = __ffs(static_cast<int>(visible_lanes)) - 1;
      visible_lanes &= visible_lanes - 1;
      const double w = __shfl_sync(0xffffffffu, weight, from);
      const Element* v_row = static_cast<const Element*>(p.v.pointer) +
                             policy::kv_row_offset(p.v, s, kv_head, first + from);
#pragma unroll
      for (int i = 0; i < kMaxColumns / 32; ++i) {
        const int64_t column = lane + 32 * i;
        if (column < p.head_dim_v) row.acc[i] += w * load_as<double>(v_row + column * p.v.column);
      }
    }
  }
  return row;
}

// Writes rows [row_begin, row_end) of a sequence: the results, or the partial states of a split.
template <class Element, int kMaxColumns>
__device__ __noinline__ void recompute_rows(const ForwardParams& p, const Sequence& s, int64_t head,
                                            int64_t row_begin, int64_t row_end, int64_t split,
                                            int64_t kv_begin, int64_t kv_end) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t warps = blockDim.x / 32;
  for (int64_t q = row_begin + threadIdx.x / 32; q < row_end; q += warps) {
    const auto row = exact_row<Element, kMaxColumns>(p, s, head, q, kv_begin, kv_end);
    const double keep_scale = p.dropout.active ? p.dropout.keep_scale : 1.0;
    if (p.num_splits > 1) {
      float* to = partial_row<float>(p, s, head, q, split);
      for (int i = 0; i < kMaxColumns / 32; ++i) {
        const int64_t column = lane + 32 * i;
        if (column < p.head_dim_v) to[column] = static_cast<float>(row.acc[i] * keep_scale);
      }
      float* extra = to + partial_columns<float>(p.head_dim_v);
      if (lane == 0) {
        extra[0] = static_cast<float>(row.max);
        extra[1] = static_cast<float>(row.sum);
        extra[2] = row.seen ? 1.0f : 0.0f;
      }
      continue;
    }
    const bool has_sink = p.sink.present();
    const double sink =
        has_sink ? load_scalar<double>(p.sink.dtype, p.sink.pointer, head * p.sink.head) : 0.0;
    const auto end = finish_row<double>(row.max, row.sum, row.seen, has_sink, sink);
    const double scale = end.out_scale * keep_scale;
    const int64_t to = policy::q_row_offset(p.out, s, head, q);
    for (int i = 0; i < kMaxColumns / 32; ++i) {
      const int64_t column = lane + 32 * i;
      if (column < p.head_dim_v) {
        store_scalar(p.out.dtype, p.out.pointer, to + column * p.out.column,
                     row.acc[i] * scale + 0.0);
      }
    }
    if (lane == 0) {
      const float lse = static_cast<float>(end.lse);
      const float lse_lo = isfinite(end.lse) ? static_cast<float>(end.lse - lse) : 0.0f;
      store_statistics<float>(p, s, head, q, lse, isnan(lse) ? lse : lse_lo);
    }
  }
}

}  // namespace runmax::cuda
