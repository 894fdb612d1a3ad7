// The online softmax: per row a running maximum, a running sum of exp(score - maximum) and the
// weighted sum of values, all unnormalised until finish().
//
//   update:  m' = max(m, tile maximum);  alpha = exp(m - m');  p = exp(s - m')
//            sum = sum * alpha + sum(p);  acc = acc * alpha + p V
//   merge:   two states of disjoint keys become one in the same way
//   finish:  out = acc / sum;  lse = m + log(sum); the sink enters the sum once, here
#pragma once

#include "cpu/simd.h"

namespace runmax::cpu::RUNMAX_CPU_ISA {

template <class T>
inline constexpr T kMinusInfinity = -static_cast<T>(__builtin_inff());

// States of a block of rows. `seen` tells an empty row (0) from one whose visible scores are all
// -inf, which the maximum cannot.
template <class T>
struct RowStates {
  T* acc;  // [rows, stride]
  T* max;
  T* sum;
  T* seen;
  int64_t stride;

  RUNMAX_INLINE void init(int64_t rows) const {
    for (int64_t i = 0; i < rows * stride; ++i) acc[i] = 0;
    for (int64_t i = 0; i < rows; ++i) {
      max[i] = kMinusInfinity<T>;
      sum[i] = 0;
      seen[i] = 0;
    }
  }
};

// What to subtract from scores whose maximum is m: while all scores are -inf, anything finite.
template <class T>
RUNMAX_INLINE T safe_max(T m) {
  return m == kMinusInfinity<T> ? T{0} : m;
}

// One row of scores [columns] against its state: scores become weights p in place. Returns alpha.
template <class T>
RUNMAX_INLINE T update_row(T* scores, int64_t columns, T& max, T& sum) {
  Vec<T> lane_max = broadcast(kMinusInfinity<T>);
  for (int64_t j = 0; j < columns; j += kLanes<T>) {
    lane_max = max_drop_nan(lane_max, load(scores + j));
  }
  const T tile_max = reduce_max<T>(lane_max);
  const T new_max = tile_max > max ? tile_max : max;
  const T subtract = safe_max(new_max);
  const T alpha = exp_nonpositive_scalar(max - subtract);
  Vec<T> lane_sum{};
  for (int64_t j = 0; j < columns; j += kLanes<T>) {
    const Vec<T> p = exp_nonpositive(load(scores + j) - subtract);
    store(scores + j, p);
    lane_sum += p;
  }
  sum = sum * alpha + reduce_add<T>(lane_sum);
  max = new_max;
  return alpha;
}

// Row i of `to` becomes the state over both sets of keys; `columns` is a multiple of the lanes.
template <class T>
RUNMAX_INLINE void merge_row(const RowStates<T>& to, int64_t i, const T* acc, T max, T sum, T seen,
                             int64_t columns) {
  if (seen == 0) return;
  T* to_acc = to.acc + i * to.stride;
  if (to.seen[i] == 0) {
    for (int64_t d = 0; d < columns; ++d) to_acc[d] = acc[d];
    to.max[i] = max;
    to.sum[i] = sum;
    to.seen[i] = 1;
    return;
  }
  const T new_max = max > to.max[i] ? max : to.max[i];
  const T subtract = safe_max(new_max);
  const T keep = exp_nonpositive_scalar(to.max[i] - subtract);
  const T add = exp_nonpositive_scalar(max - subtract);
  for (int64_t d = 0; d < columns; d += kLanes<T>) {
    store(to_acc + d, fma(load(acc + d), broadcast(add), load(to_acc + d) * keep));
  }
  to.sum[i] = to.sum[i] * keep + sum * add;
  to.max[i] = new_max;
}

template <class T>
struct Finished {
  T out_scale;  // out = acc * out_scale
  T lse;
  T lse_lo;  // what rounding lse lost
};

// `keep_scale` is dropout's 1 / (1 - p). An empty row gives out 0 and lse -inf (with a sink: the
// sink). A visible key and a maximum of -inf or +inf, or a NaN score, give NaN.
template <class T>
RUNMAX_INLINE Finished<T> finish_row(T max, T sum, T seen, bool has_sink, T sink,
                                     typename Lanes<T>::Wide keep_scale) {
  using Wide = typename Lanes<T>::Wide;
  if (seen == 0) return {T{0}, has_sink ? sink : kMinusInfinity<T>, T{0}};
  if (max == kMinusInfinity<T>) {
    const T nan = max - max;
    return {nan, nan, nan};
  }
  Wide total = sum;
  Wide top = max;
  Wide weight = 1;
  if (has_sink && sink != kMinusInfinity<T>) {
    top = sink > max ? sink : max;
    weight = exp_wide(static_cast<Wide>(max) - top);
    total = total * weight + exp_wide(static_cast<Wide>(sink) - top);
  }
  const Wide lse = top + log_wide(total);
  const T rounded = static_cast<T>(lse);
  return {static_cast<T>(weight / total * keep_scale), rounded,
          static_cast<T>(lse - static_cast<Wide>(rounded))};
}

}  // namespace runmax::cpu::RUNMAX_CPU_ISA
