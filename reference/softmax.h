// The softmax of one row in the oracle's precision, with the score errors that docs/numerics.md
// allows an implementation. Forward and backward share it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/rows.h"

namespace runmax::reference {

// A row's errors past this are capped: its weights are then unknown to within e^60, and its gate
// says nothing any more, but it stays a number.
inline constexpr double kMaxExponentError = 60;

// How much a weight exp(log_weight) can grow when its score is off by at most `error`.
inline double weight_excess(double log_weight, double error) {
  if (log_weight == -std::numeric_limits<double>::infinity()) return 0;
  error = std::min(error, kMaxExponentError);
  return error < 1 ? std::exp(log_weight) * std::expm1(error)
                   : std::exp(log_weight + error) - std::exp(log_weight);
}

// sum a b and sum |a b|, in four partial sums each, for speed.
template <class Real>
struct Dot {
  Real sum;
  Real sum_abs;
};
template <class Real>
Dot<Real> dot_product(const Real* a, const Real* b, size_t size) {
  constexpr size_t kLanes = 4;
  Real sum[kLanes] = {}, sum_abs[kLanes] = {};
  const size_t whole = size / kLanes * kLanes;
  for (size_t c = 0; c < whole; c += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const Real product = a[c + lane] * b[c + lane];
      sum[lane] += product;
      sum_abs[lane] += std::fabs(product);
    }
  }
  for (size_t c = whole; c < size; ++c) {
    sum[0] += a[c] * b[c];
    sum_abs[0] += std::fabs(a[c] * b[c]);
  }
  return {(sum[0] + sum[1]) + (sum[2] + sum[3]),
          (sum_abs[0] + sum_abs[1]) + (sum_abs[2] + sum_abs[3])};
}

// The derivative of tanh.
template <class Real>
Real cap_slope(Real x) {
  const Real cosh = std::cosh(x);
  return 1 / (cosh * cosh);
}

template <class Real>
struct Softmax {
  std::vector<int64_t> keys;        // the visible ones, ascending
  std::vector<Real> score;          // of each
  std::vector<double> error;        // of each: E_ij, in units of `roundoff`
  std::vector<Real> slope;          // of each, with a softcap: the derivative of the cap ...
  std::vector<double> slope_error;  // ... and how far off it may be
  std::vector<Real> prob;           // of each; the sink has the rest
  std::vector<double> excess;       // of each: p_ij (exp(roundoff E_ij) - 1)
  double total_excess = 0;          // their sum, the sink's included
  double sink_excess = 0;
  double lse_error = 0;  // how far such score errors can raise lse
  Real max = 0;          // over scores and sink
  Real lse = 0;
  bool is_nan = false;  // a score is nan, or the largest is +-inf
  bool beyond = false;  // a visible |scale| sum |q k| leaves the range of the contract

  // `k` holds the keys of one head, [kv_len, head_dim].
  void compute(const Row& row, const std::vector<Real>& q, const std::vector<Real>& k,
               double roundoff, double range);

 private:
  void compute_scores(const Row& row, const std::vector<Real>& q, const std::vector<Real>& k,
                      double roundoff, double range);
};

template <class Real>
void Softmax<Real>::compute_scores(const Row& row, const std::vector<Real>& q,
                                   const std::vector<Real>& k, double roundoff, double range) {
  const Definition& d = row.definition;
  const runmax_problem& problem = d.problem;
  const auto head_dim = static_cast<size_t>(d.head_dim);
  const Real scale = d.scale, cap = problem.softcap;
  keys.clear();
  score.clear();
  error.clear();
  slope.clear();
  slope_error.clear();
  beyond = false;
  for (int64_t key = 0; key < row.sequence.kv_len; ++key) {
    if (!row.sees(key)) continue;
    const auto [dot, sum_abs] =
        dot_product(q.data(), k.data() + static_cast<size_t>(key) * head_dim, head_dim);
    Real s = scale * dot;
    const double magnitude = static_cast<double>(std::fabs(scale) * sum_abs);
    if (std::isfinite(magnitude) && magnitude >= range) beyond = true;
    double e = std::isfinite(magnitude) ? static_cast<double>(d.head_dim + 8) * magnitude : 0;
    if (cap != 0) {
      // The slope of the cap where it is steepest within the score's error, and where it is least.
      const double size = static_cast<double>(std::fabs(s));
      const double steepest =
          cap_slope<double>(std::max(0.0, size - roundoff * e) / problem.softcap);
      const double least = cap_slope<double>((size + roundoff * e) / problem.softcap);
      slope.push_back(cap_slope<Real>(s / cap));
      const auto middle = static_cast<double>(slope.back());
      slope_error.push_back(std::max(steepest - middle, middle - least) + 24 * roundoff);
      s = cap * std::tanh(s / cap);
      e = e * steepest + 12 * std::fabs(static_cast<double>(s));
    }
    const Real bias = row.bias(key), alibi = static_cast<Real>(row.alibi(key));
    keys.push_back(key);
    score.push_back(s + bias + alibi);
    error.push_back(8 + e + 4 * static_cast<double>(std::fabs(bias) + std::fabs(alibi)));
  }
}

template <class Real>
void Softmax<Real>::compute(const Row& row, const std::vector<Real>& q, const std::vector<Real>& k,
                            double roundoff, double range) {
  constexpr Real kInf = std::numeric_limits<Real>::infinity();
  compute_scores(row, q, k, roundoff, range);
  prob.assign(keys.size(), 0);
  excess.assign(keys.size(), 0);
  total_excess = sink_excess = lse_error = 0;
  is_nan = false;
  const Real sink = row.has_sink() ? Real(row.sink()) : -kInf;
  if (keys.empty()) {
    max = lse = sink;
    return;
  }

  max = -kInf;
  for (const Real s : score) {
    if (std::isnan(s)) is_nan = true;
    max = std::max(max, s);
  }
  // A sink adds to the denominator; it does not lift a row whose every score is -inf.
  if (std::isinf(max) || std::isnan(sink) || sink == kInf) is_nan = true;
  if (is_nan) {
    max = lse = std::numeric_limits<Real>::quiet_NaN();
    return;
  }

  max = std::max(max, sink);
  Real sum = std::exp(sink - max);
  for (const Real s : score) sum += std::exp(s - max);
  lse = max + std::log(sum);
  for (size_t n = 0; n < keys.size(); ++n) {
    prob[n] = std::exp(score[n] - max) / sum;
    error[n] += 4 * static_cast<double>(max - score[n]);
    excess[n] = weight_excess(static_cast<double>(score[n] - lse), roundoff * error[n]);
    total_excess += excess[n];
  }
  const double sink_error =
      sink > -kInf ? 8 + 4 * static_cast<double>(std::fabs(sink) + (max - sink)) : 0;
  sink_excess = weight_excess(static_cast<double>(sink - lse), roundoff * sink_error);
  total_excess += sink_excess;

  // log(1 + total_excess); where errors are large, without the cap that keeps that sum a number.
  lse_error = std::log1p(total_excess);
  if (total_excess < 1) return;
  // A score of -inf weighs nothing, whatever its error.
  const auto raised_weight = [&](size_t n) {
    return std::isinf(score[n]) ? -std::numeric_limits<double>::infinity()
                                : static_cast<double>(score[n] - lse) + roundoff * error[n];
  };
  double top = static_cast<double>(sink - lse) + roundoff * sink_error;
  for (size_t n = 0; n < keys.size(); ++n) top = std::max(top, raised_weight(n));
  double raised = std::exp(static_cast<double>(sink - lse) + roundoff * sink_error - top);
  for (size_t n = 0; n < keys.size(); ++n) raised += std::exp(raised_weight(n) - top);
  lse_error = top + std::log(raised);
}

}  // namespace runmax::reference
