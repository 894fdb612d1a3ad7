// The softmax of one row in the plain computation, in storage of the score matrix.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "reference/plain_product.h"
#include "reference/rows.h"

namespace runmax::reference {

inline bool present(const runmax_tensor& tensor) { return tensor.dtype != RUNMAX_DTYPE_NONE; }

// A score is more than scale * q.k, or some keys may be invisible.
inline bool needs_policy(const runmax_problem& p) {
  return p.softcap != 0 || p.dropout != 0 || (p.flags & RUNMAX_CAUSAL) != 0 ||
         (p.present & (RUNMAX_PRESENT_WINDOW_LEFT | RUNMAX_PRESENT_WINDOW_RIGHT)) != 0 ||
         present(p.bias) || present(p.mask) || present(p.alibi_slopes) || present(p.sink) ||
         present(p.segment_ids_q) || present(p.block_index);
}

// Scaled dot products to scores; returns how many keys are visible, the others get -inf. `slope`:
// where the derivatives of the softcap go, or nullptr.
template <class Real>
int64_t apply_policy(const Row& row, Real* x, Real* slope) {
  const Real cap = static_cast<Real>(row.definition.problem.softcap);
  int64_t visible = 0;
  for (int64_t key = 0; key < row.sequence.kv_len; ++key) {
    if (!row.sees(key)) {
      x[key] = -std::numeric_limits<Real>::infinity();
      continue;
    }
    ++visible;
    if (cap != 0) {
      const Real tanh = std::tanh(x[key] / cap);
      if (slope != nullptr) slope[key] = 1 - tanh * tanh;
      x[key] = cap * tanh;
    }
    x[key] += static_cast<Real>(row.bias(key));
    x[key] += static_cast<Real>(row.alibi(key));
  }
  return visible;
}

// lse = max + log_sum
template <class Real>
struct PlainRow {
  int64_t visible;
  Real max;
  double log_sum;
};

// Turns the dot products of a row into probabilities, in place: before dropout, not rounded.
template <class Real>
PlainRow<Real> plain_softmax(const Row& row, Real* x, Real* slope = nullptr) {
  constexpr Real kInf = std::numeric_limits<Real>::infinity();
  constexpr Real kNaN = std::numeric_limits<Real>::quiet_NaN();
  const int64_t kv_len = row.sequence.kv_len;
  const Real scale = static_cast<Real>(row.definition.scale);
  for (int64_t key = 0; key < kv_len; ++key) x[key] *= scale;
  int64_t visible = kv_len;
  if (needs_policy(row.definition.problem)) visible = apply_policy(row, x, slope);
  const Real sink = row.has_sink() ? static_cast<Real>(row.sink()) : -kInf;
  if (visible == 0) {
    std::fill_n(x, kv_len, Real(0));
    return {0, sink, 0};
  }
  Real max = -kInf;
  bool is_nan = std::isnan(sink) || sink == kInf;
  for (int64_t key = 0; key < kv_len; ++key) {
    is_nan |= x[key] != x[key];
    max = x[key] > max ? x[key] : max;
  }
  if (is_nan || std::isinf(max)) {
    std::fill_n(x, kv_len, kNaN);
    return {visible, kNaN, 0};
  }
  max = std::max(max, sink);
  const Real sum = exp_and_sum(x, kv_len, max) + std::exp(sink - max);
  for (int64_t key = 0; key < kv_len; ++key) x[key] /= sum;
  return {visible, max, std::log(static_cast<double>(sum))};
}

}  // namespace runmax::reference
