#include "reference/backward.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <tuple>

#include "reference/gate_constants.h"
#include "reference/number.h"
#include "reference/operand_data.h"
#include "reference/oracle.h"
#include "reference/rows.h"
#include "reference/softmax.h"

namespace runmax::reference {
namespace {

bool present(const runmax_tensor& tensor) { return tensor.dtype != RUNMAX_DTYPE_NONE; }

// A gradient while it is summed up. Nothing is stored for one that is not asked for.
template <class Real>
struct Sum {
  bool wanted = false;
  std::vector<Real> value;
  std::vector<double> error;
  std::vector<Reach> reach;

  Sum(const runmax_tensor& tensor, Reach initial) : wanted(present(tensor)) {
    if (!wanted) return;
    const auto size = static_cast<size_t>(element_count(tensor));
    value.assign(size, 0);
    error.assign(size, 0);
    reach.assign(size, initial);
  }

  void mark(size_t at, Reach what) { reach[at] = std::max(reach[at], what); }
  void mark(size_t at, size_t count, Reach what) {
    for (size_t n = at; n < at + count; ++n) mark(n, what);
  }
  void add(size_t at, Real term, double term_error, Reach what) {
    value[at] += term;
    error[at] += term_error;
    mark(at, what);
  }
  // weight * x for a whole row of channels; `tiny` is what one product may lose by underflow.
  void add_row(size_t at, Real weight, double weight_error, const std::vector<Real>& x, double tiny,
               Reach what) {
    for (size_t c = 0; c < x.size(); ++c) {
      add(at + c, weight * x[c], weight_error * static_cast<double>(std::fabs(x[c])) + tiny, what);
    }
  }

  // Sums so large that an implementation may leave the range of its accumulator are beyond.
  Gradient finish(const Arithmetic& arithmetic) {
    Gradient gradient;
    for (size_t n = 0; n < value.size(); ++n) {
      gradient.value.push_back(static_cast<double>(value[n]));
      if (error[n] >= kSum * arithmetic.roundoff * arithmetic.output_range) {
        mark(n, Reach::kBeyond);
      }
    }
    gradient.error = std::move(error);
    gradient.reach = std::move(reach);
    return gradient;
  }
};

// delta_i = sum_d d_out_id out_id, and how far off it is when out has been rounded.
template <class Real>
struct Delta {
  Real value = 0;
  double error = 0;       // out's own error, and that of the sum over d
  double magnitude = 0;   // sum_d |d_out_id out_id|
  bool overflow = false;  // out leaves the range of its type
};

// One key (merge: one part) of a row, as out is made of them.
template <class Real>
struct Part {
  Real weight;    // p' (merge: w)
  double excess;  // how far weight may be too large, relative weights being off
  double factor;  // 0, or 1 / (1 - dropout)
  Real dot;       // d_out . v
  double dot_abs;
};

// weight_rounding: c2 u_p, what rounding each weight costs. total_excess bounds how far off the
// denominator is, other_excess is the share of it that belongs to no part (the sink).
template <class Real>
Delta<Real> delta_of(const std::vector<Part<Real>>& parts, const std::vector<Real>& d_out,
                     const std::vector<Real>& out, runmax_dtype out_type, double weight_rounding,
                     double total_excess, double other_excess, const Arithmetic& arithmetic) {
  Delta<Real> delta;
  double out_rounding = 0;
  for (size_t c = 0; c < d_out.size(); ++c) {
    const double size = static_cast<double>(std::fabs(d_out[c]));
    const double value = static_cast<double>(std::fabs(out[c]));
    out_rounding += size * rounding(out_type, value);
    delta.magnitude += size * value;
    if (std::isfinite(value) && std::isinf(round_to(out_type, 1.01 * value))) delta.overflow = true;
  }
  for (const Part<Real>& part : parts) delta.value += part.weight * part.dot;

  double rounded = 0, terms = 0, moved = other_excess * static_cast<double>(std::fabs(delta.value));
  double lost = 0;
  for (const Part<Real>& part : parts) {
    const double weight = static_cast<double>(part.weight);
    rounded += weight * static_cast<double>(std::fabs(part.dot));
    terms += weight * part.dot_abs;
    moved += part.excess * std::fabs(part.factor * static_cast<double>(part.dot) -
                                     static_cast<double>(delta.value));
    lost += part.factor * part.dot_abs + delta.magnitude + 1;
  }
  delta.error = kRounding * out_rounding + weight_rounding * rounded +
                arithmetic.roundoff *
                    (kSum * terms + (static_cast<double>(d_out.size()) + 8) * delta.magnitude) +
                kScore * (1 + total_excess) * moved + arithmetic.tiny_weight * lost;
  return delta;
}

template <class Real>
class BackwardPass {
 public:
  BackwardPass(const Definition& definition, const std::vector<int64_t>& rows)
      : d_(definition),
        p_(definition.problem),
        arithmetic_(arithmetic_of(p_.q.dtype)),
        every_row_(rows.empty()),
        d_q_(p_.d_q, every_row_ ? Reach::kUnused : Reach::kSkipped),
        d_k_(p_.d_k, every_row_ ? Reach::kUnused : Reach::kSkipped),
        d_v_(p_.d_v, every_row_ ? Reach::kUnused : Reach::kSkipped),
        d_bias_(p_.d_bias, every_row_ ? Reach::kNothing : Reach::kSkipped),
        d_sink_(p_.d_sink, every_row_ ? Reach::kNothing : Reach::kSkipped),
        d_alibi_(p_.d_alibi_slopes, every_row_ ? Reach::kNothing : Reach::kSkipped) {
    const bool narrow = p_.q.dtype == RUNMAX_BF16 || p_.q.dtype == RUNMAX_F16;
    prob_rounding_ = narrow ? kProbRounding * unit_roundoff(p_.q.dtype) : 0;
    computed_.assign(static_cast<size_t>(d_.rows()), every_row_);
    for (const int64_t row : rows) computed_[static_cast<size_t>(row)] = 1;
  }

  Backward run() {
    for (const Sequence& sequence : d_.sequences) {
      for (int64_t kv_head = 0; kv_head < d_.kv_heads; ++kv_head) run_head(sequence, kv_head);
    }
    Backward result;
    result.visible_pairs = visible_pairs_;
    if (d_q_.wanted) result.d_q = d_q_.finish(arithmetic_);
    if (d_k_.wanted) result.d_k = d_k_.finish(arithmetic_);
    if (d_v_.wanted) result.d_v = d_v_.finish(arithmetic_);
    if (d_bias_.wanted) result.d_bias = d_bias_.finish(arithmetic_);
    if (d_sink_.wanted) result.d_sink = d_sink_.finish(arithmetic_);
    if (d_alibi_.wanted) result.d_alibi_slopes = d_alibi_.finish(arithmetic_);
    return result;
  }

 private:
  // What one visible pair adds to the gradients, and how far off each may be.
  struct Pair {
    int64_t key;
    Real prob;     // multiplies d_out in d_v
    Real score;    // d_s: the gradient of the capped score, of bias and of ALiBi
    Real product;  // of q.k: multiplies k in d_q, q in d_k
    double prob_error, score_error, product_error;
  };
  struct RowPairs {
    int64_t head, i;
    std::vector<Real> q, d_out;
    std::vector<Pair> pairs;
    Reach reach = Reach::kPairs;  // of what depends on d_s
    Reach reach_d_v = Reach::kPairs;
    Real sink = 0;  // what the row adds to d_sink
    double sink_error = 0;
    bool has_sink_term = false;
  };

  // All rows that share a kv head. Rows go by blocks: first each row alone, then the keys gather
  // what the block's rows add, always in the order of rows.
  void run_head(const Sequence& sequence, int64_t kv_head) {
    std::vector<std::pair<int64_t, int64_t>> rows;  // head, i
    for (int64_t g = 0; g < d_.group_size; ++g) {
      const int64_t head = kv_head * d_.group_size + g;
      for (int64_t i = 0; i < sequence.q_len; ++i) {
        if (computed_[static_cast<size_t>(d_.lse_index(sequence, head, i))] == 0) continue;
        rows.emplace_back(head, i);
        if (d_q_.wanted) {
          d_q_.mark(d_q_row(sequence, head, i), static_cast<size_t>(d_.head_dim), Reach::kNothing);
        }
      }
    }
    if (every_row_) {
      for (int64_t key = 0; key < sequence.kv_len; ++key) {
        const size_t row = kv_row(sequence, kv_head, key);
        const auto dim = static_cast<size_t>(d_.head_dim);
        const auto dim_v = static_cast<size_t>(d_.head_dim_v);
        if (d_k_.wanted) d_k_.mark(row * dim, dim, Reach::kNothing);
        if (d_v_.wanted) d_v_.mark(row * dim_v, dim_v, Reach::kNothing);
      }
    }
    const Head<Real> k(d_, p_.k, d_.args.k, sequence, kv_head, d_.head_dim);
    const Head<Real> v(d_, p_.v, d_.args.v, sequence, kv_head, d_.head_dim_v);
    constexpr int64_t kPairsAtOnce = int64_t{1} << 20;
    const auto block = static_cast<size_t>(
        std::clamp<int64_t>(kPairsAtOnce / std::max<int64_t>(sequence.kv_len, 1), 1, 64));
    for (size_t first = 0; first < rows.size(); first += block) {
      std::vector<RowPairs> results(std::min(block, rows.size() - first));
      const double work = 3 * static_cast<double>(results.size()) *
                          static_cast<double>(sequence.kv_len * (d_.head_dim + d_.head_dim_v));
      parallel(static_cast<int64_t>(results.size()), work, 0, [&](int64_t n) {
        RowPairs& result = results[static_cast<size_t>(n)];
        std::tie(result.head, result.i) = rows[first + static_cast<size_t>(n)];
        run_row(Row(d_, sequence, result.head, result.i), k.data, v.data, result);
      });
      for (const RowPairs& result : results) visible_pairs_ += result.pairs.size();
      if (every_row_) gather(sequence, kv_head, results, work);
    }
  }

  size_t d_q_row(const Sequence& sequence, int64_t head, int64_t i) const {
    return static_cast<size_t>(d_.out_row(sequence, head, i) * d_.head_dim);
  }
  size_t kv_row(const Sequence& sequence, int64_t head, int64_t key) const {
    return static_cast<size_t>(d_.kv_row(sequence, head, key));
  }

  void run_row(const Row& row, const std::vector<Real>& k, const std::vector<Real>& v,
               RowPairs& result) {
    result.q = query_row<Real>(row, p_.q, d_.args.q, d_.head_dim);
    result.d_out.assign(static_cast<size_t>(d_.head_dim_v), 0);
    if (present(p_.d_out)) {
      result.d_out = query_row<Real>(row, p_.d_out, d_.args.d_out, d_.head_dim_v);
    }
    Real d_lse = 0;
    if (present(p_.d_lse)) {
      const int64_t number = d_.lse_index(row.sequence, row.head, row.i);
      d_lse = load(p_.d_lse.dtype, d_.args.d_lse, element_offset(p_.d_lse, number));
    }
    Softmax<Real> softmax;
    softmax.compute(row, result.q, k, arithmetic_.roundoff, arithmetic_.range);
    if (softmax.keys.empty()) {
      // The sink is all there is: lse is the sink, out does not depend on it.
      result.has_sink_term = row.has_sink() && present(p_.d_lse);
      result.sink = d_lse;
      result.sink_error = kSum * arithmetic_.roundoff * static_cast<double>(std::fabs(d_lse));
      return;
    }
    result.has_sink_term = row.has_sink();
    if (softmax.is_nan) {
      constexpr Real kNaN = std::numeric_limits<Real>::quiet_NaN();
      for (const int64_t key : softmax.keys) {
        result.pairs.push_back({key, kNaN, kNaN, kNaN, 0, 0, 0});
      }
      result.sink = kNaN;
    } else {
      run_pairs(row, softmax, v, d_lse, result);
    }
    if (d_q_.wanted) {
      const size_t at = d_q_row(row.sequence, row.head, row.i);
      const auto head_dim = static_cast<size_t>(d_.head_dim);
      std::vector<Real> key(head_dim);
      for (const Pair& pair : result.pairs) {
        const auto from = k.begin() + pair.key * d_.head_dim;
        std::copy(from, from + d_.head_dim, key.begin());
        d_q_.add_row(at, pair.product, pair.product_error, key, arithmetic_.tiny, result.reach);
      }
    }
  }

  void run_pairs(const Row& row, const Softmax<Real>& softmax, const std::vector<Real>& v,
                 Real d_lse, RowPairs& result) const {
    const double u = arithmetic_.roundoff;
    const auto dim_v = static_cast<size_t>(d_.head_dim_v);
    const size_t count = softmax.keys.size();
    std::vector<Part<Real>> parts;
    std::vector<Real> out(dim_v);
    bool beyond = softmax.beyond;
    if (beyond) result.reach_d_v = Reach::kBeyond;
    for (size_t n = 0; n < count; ++n) {
      const Real* value = v.data() + static_cast<size_t>(softmax.keys[n]) * dim_v;
      const double factor = row.dropout_factor(softmax.keys[n]);
      const Real weight = softmax.prob[n] * Real(factor);
      Part<Real> part{weight, softmax.excess[n], factor, 0, 0};
      if (present(p_.d_out)) {
        const auto [dot, dot_abs] = dot_product(result.d_out.data(), value, dim_v);
        part.dot = dot;
        part.dot_abs = static_cast<double>(dot_abs);
        for (size_t c = 0; c < dim_v; ++c) out[c] += weight * value[c];
      }
      if (std::isfinite(part.dot_abs) && factor * part.dot_abs >= arithmetic_.range) beyond = true;
      parts.push_back(part);
    }
    const Delta<Real> delta = delta_of(parts, result.d_out, out, p_.out.dtype, prob_rounding_,
                                       softmax.total_excess, softmax.sink_excess, arithmetic_);
    if (beyond || delta.overflow) result.reach = Reach::kBeyond;

    // How far the lse that a kernel is given may be off, in units of u: its gate.
    const double lse = static_cast<double>(softmax.lse);
    const double lse_error =
        kLseSum + kScore * (softmax.lse_error / u) +
        8 * std::fabs(lse - static_cast<double>(softmax.max)) +
        (present(p_.lse_lo) ? 0 : kLseRounding * rounding(p_.lse.dtype, lse) / u);
    const double upstream = static_cast<double>(std::fabs(d_lse)) + delta.magnitude;
    const double scale = std::fabs(d_.scale);
    for (size_t n = 0; n < count; ++n) {
      const Part<Real>& part = parts[n];
      const Real prob = softmax.prob[n];
      const Real total = Real(part.factor) * part.dot - delta.value + d_lse;
      const double p = static_cast<double>(prob), size = static_cast<double>(std::fabs(total));
      const double excess = weight_excess(static_cast<double>(softmax.score[n] - softmax.lse),
                                          u * (softmax.error[n] + lse_error));
      const double total_error =
          u * ((static_cast<double>(dim_v) + 8) * part.factor * part.dot_abs + 8 * upstream) +
          delta.error + arithmetic_.tiny_weight;

      Pair pair{};
      pair.key = softmax.keys[n];
      pair.prob = part.weight;
      pair.prob_error = part.factor * (excess + arithmetic_.tiny_weight) +
                        (prob_rounding_ + kSum * u) * static_cast<double>(part.weight);
      pair.score = prob * total;
      const double magnitude = p * size;
      const double moved =
          excess * size + (p + excess) * total_error + arithmetic_.tiny_weight * (size + 1);
      pair.score_error = moved + kSum * u * magnitude;
      const bool capped = !softmax.slope.empty();
      const Real slope = capped ? softmax.slope[n] : 1;
      const double slope_error = capped ? softmax.slope_error[n] : 0;
      pair.product = Real(d_.scale) * slope * pair.score;
      pair.product_error =
          scale * (static_cast<double>(slope) * (moved + (prob_rounding_ + kSum * u) * magnitude) +
                   slope_error * (magnitude + moved));
      result.pairs.push_back(pair);
    }
    if (row.has_sink()) {
      const Real sink = row.sink(), prob = std::exp(sink - softmax.lse);
      const double p = static_cast<double>(prob), log_p = static_cast<double>(sink - softmax.lse);
      const double error = 8 + 4 * (static_cast<double>(std::fabs(sink)) + std::fabs(log_p));
      const double excess = sink == -std::numeric_limits<Real>::infinity()
                                ? 0
                                : weight_excess(log_p, u * (error + lse_error));
      const Real total = d_lse - delta.value;
      const double size = static_cast<double>(std::fabs(total));
      result.sink = prob * total;
      result.sink_error = excess * size + (p + excess) * (8 * u * upstream + delta.error) +
                          arithmetic_.tiny_weight * (size + 1) + kSum * u * p * size;
    }
  }

  // Everything that is summed over rows.
  void gather(const Sequence& sequence, int64_t kv_head, const std::vector<RowPairs>& rows,
              double work) {
    constexpr int64_t kRange = 256;
    if (d_k_.wanted || d_v_.wanted) {
      parallel((sequence.kv_len + kRange - 1) / kRange, work, 0, [&](int64_t range) {
        for (const RowPairs& row : rows) {
          const auto before = [](const Pair& pair, int64_t key) { return pair.key < key; };
          auto pair = std::lower_bound(row.pairs.begin(), row.pairs.end(), range * kRange, before);
          for (; pair != row.pairs.end() && pair->key < (range + 1) * kRange; ++pair) {
            const size_t at = kv_row(sequence, kv_head, pair->key);
            if (d_k_.wanted) {
              d_k_.add_row(at * row.q.size(), pair->product, pair->product_error, row.q,
                           arithmetic_.tiny, row.reach);
            }
            if (d_v_.wanted) {
              d_v_.add_row(at * row.d_out.size(), pair->prob, pair->prob_error, row.d_out,
                           arithmetic_.tiny, row.reach_d_v);
            }
          }
        }
      });
    }
    for (const RowPairs& row : rows) {
      if (d_sink_.wanted && row.has_sink_term) {
        d_sink_.add(static_cast<size_t>(row.head), row.sink, row.sink_error, row.reach);
      }
      for (const Pair& pair : row.pairs) {
        if (d_bias_.wanted) {
          const int64_t at = broadcast_number(p_.bias, sequence.batch, row.head, row.i, pair.key);
          d_bias_.add(static_cast<size_t>(at), pair.score, pair.score_error, row.reach);
        }
        if (d_alibi_.wanted) {
          const int64_t distance = std::llabs(row.i + sequence.diagonal - pair.key);
          d_alibi_.add(static_cast<size_t>(d_.slope_number(sequence, row.head)),
                       -pair.score * static_cast<Real>(distance),
                       pair.score_error * static_cast<double>(distance), row.reach);
        }
      }
    }
  }

  const Definition& d_;
  const runmax_problem& p_;
  const Arithmetic arithmetic_;
  const bool every_row_;
  double prob_rounding_ = 0;  // c2 u_p
  std::vector<unsigned char> computed_;
  uint64_t visible_pairs_ = 0;
  Sum<Real> d_q_, d_k_, d_v_, d_bias_, d_sink_, d_alibi_;
};

template <class Real>
Backward run_merge(const runmax_problem& p, const runmax_args& args) {
  constexpr Real kInf = std::numeric_limits<Real>::infinity();
  constexpr Real kNaN = std::numeric_limits<Real>::quiet_NaN();
  const Arithmetic arithmetic = arithmetic_of(p.partial_lse.dtype);
  const double u = arithmetic.roundoff;
  const int64_t count = p.partial_lse.shape[0];
  const int64_t rows = count > 0 ? element_count(p.partial_lse) / count : 0;
  const int64_t dim = p.partial_out.shape[p.partial_out.rank - 1];
  const bool packed = p.partial_lse.rank == 3;
  Sum<Real> d_out_sum(p.d_partial_out, Reach::kNothing),
      d_lse_sum(p.d_partial_lse, Reach::kNothing);
  const auto row_of = [&](const runmax_tensor& tensor, const void* data, int64_t number) {
    std::vector<Real> values;
    for (int64_t c = 0; c < dim; ++c) {
      values.push_back(load(tensor.dtype, data, element_offset(tensor, number * dim + c)));
    }
    return values;
  };

  for (int64_t row = 0; row < rows; ++row) {
    int64_t out_row = row;
    if (packed) {
      const int64_t heads = p.partial_lse.shape[1], tokens = p.partial_lse.shape[2];
      out_row = row % tokens * heads + row / tokens;
    }
    std::vector<int64_t> live;
    std::vector<Real> lses;
    Real max = -kInf;
    bool is_nan = false;
    for (int64_t n = 0; n < count; ++n) {
      const Real lse = load(p.partial_lse.dtype, args.partial_lse,
                            element_offset(p.partial_lse, n * rows + row));
      if (lse == -kInf) continue;
      live.push_back(n);
      lses.push_back(lse);
      is_nan = is_nan || !std::isfinite(lse);
      max = std::max(max, lse);
    }
    if (live.empty()) continue;

    std::vector<Real> d_out(static_cast<size_t>(dim));
    if (present(p.d_out)) d_out = row_of(p.d_out, args.d_out, out_row);
    Real d_lse = 0;
    if (present(p.d_lse)) d_lse = load(p.d_lse.dtype, args.d_lse, element_offset(p.d_lse, row));
    Real denominator = 0;
    for (const Real lse : lses) denominator += std::exp(lse - max);
    const Real lse = max + std::log(denominator);

    std::vector<Part<Real>> parts;
    std::vector<Real> out(static_cast<size_t>(dim));
    double total_excess = 0;
    for (size_t n = 0; n < live.size(); ++n) {
      const std::vector<Real> value =
          row_of(p.partial_out, args.partial_out, live[n] * rows + out_row);
      Part<Real> part{is_nan ? kNaN : std::exp(lses[n] - lse), 0, 1, 0, 0};
      if (!is_nan) {
        const double error = 8 + 4 * static_cast<double>(max - lses[n]);
        part.excess = weight_excess(static_cast<double>(lses[n] - lse), u * error);
        total_excess += part.excess;
      }
      if (present(p.d_out)) {
        const auto [dot, dot_abs] = dot_product(d_out.data(), value.data(), value.size());
        part.dot = dot;
        part.dot_abs = static_cast<double>(dot_abs);
        for (size_t c = 0; c < out.size(); ++c) out[c] += part.weight * value[c];
      }
      parts.push_back(part);
    }
    const Delta<Real> delta =
        delta_of(parts, d_out, out, p.out.dtype, 0, total_excess, 0, arithmetic);
    const double lse_error = kLseSum + kScore * (std::log1p(total_excess) / u) +
                             8 * static_cast<double>(std::fabs(lse - max)) +
                             kLseRounding * rounding(p.lse.dtype, static_cast<double>(lse)) / u;
    const double upstream = static_cast<double>(std::fabs(d_lse)) + delta.magnitude;
    const Reach reach = delta.overflow ? Reach::kBeyond : Reach::kPairs;
    for (size_t n = 0; n < live.size(); ++n) {
      const Part<Real>& part = parts[n];
      const double error = 8 + 4 * static_cast<double>(max - lses[n]) + lse_error;
      const double excess =
          is_nan ? 0 : weight_excess(static_cast<double>(lses[n] - lse), u * error);
      const auto number = static_cast<size_t>(live[n] * rows);
      if (d_out_sum.wanted) {
        d_out_sum.add_row((number + static_cast<size_t>(out_row)) * d_out.size(), part.weight,
                          excess + arithmetic.tiny_weight, d_out, arithmetic.tiny, Reach::kPairs);
      }
      if (d_lse_sum.wanted) {
        const Real total = part.dot - delta.value + d_lse;
        const double size = static_cast<double>(std::fabs(total));
        const double total_error =
            u * ((static_cast<double>(dim) + 8) * part.dot_abs + 8 * upstream) + delta.error;
        d_lse_sum.add(number + static_cast<size_t>(row), part.weight * total,
                      excess * size + (static_cast<double>(part.weight) + excess) * total_error +
                          arithmetic.tiny_weight * (size + 1),
                      reach);
      }
    }
  }
  Backward result;
  if (d_out_sum.wanted) result.d_partial_out = d_out_sum.finish(arithmetic);
  if (d_lse_sum.wanted) result.d_partial_lse = d_lse_sum.finish(arithmetic);
  return result;
}

}  // namespace

Backward backward(const runmax_problem& problem, const runmax_args& args,
                  const std::vector<int64_t>& rows) {
  const Definition definition(problem, args);
  return problem.q.dtype == RUNMAX_F64 ? BackwardPass<long double>(definition, rows).run()
                                       : BackwardPass<double>(definition, rows).run();
}

Backward merge_backward(const runmax_problem& problem, const runmax_args& args) {
  return problem.partial_lse.dtype == RUNMAX_F64 ? run_merge<long double>(problem, args)
                                                 : run_merge<double>(problem, args);
}

}  // namespace runmax::reference
