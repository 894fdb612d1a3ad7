#include "reference/oracle.h"

#include <cmath>
#include <limits>

#include "reference/number.h"
#include "reference/operand_data.h"
#include "reference/rows.h"
#include "reference/softmax.h"

namespace runmax::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// sum_j w_j v_j and what its gate needs, element by element.
template <class Real>
struct WeightedSum {
  std::vector<Real> sum;
  std::vector<double> terms;      // sum_j w_j |v_j|
  std::vector<double> excess;     // sum_j w_j' |v_j|, w' what the weights may be too large by
  std::vector<double> magnitude;  // sum_j |v_j|
  std::vector<int> infinite;      // bit 0: some v_j is +inf, bit 1: -inf, both: nan

  explicit WeightedSum(size_t size)
      : sum(size), terms(size), excess(size), magnitude(size), infinite(size) {}

  // A weight of 0 does not hide a value that is not finite: the row sees it.
  void add(Real weight, double weight_error, const Real* v, bool finite) {
    for (size_t c = 0; c < sum.size(); ++c) {
      if (!finite && !std::isfinite(v[c])) {
        infinite[c] |= std::isnan(v[c]) ? 3 : v[c] > 0 ? 1 : 2;
        continue;
      }
      const double size = static_cast<double>(std::fabs(v[c]));
      sum[c] += weight * v[c];
      terms[c] += static_cast<double>(weight) * size;
      excess[c] += weight_error * size;
      magnitude[c] += size;
    }
  }

  double value(size_t c) const {
    if (infinite[c] != 0) return infinite[c] == 1 ? kInf : infinite[c] == 2 ? -kInf : kNaN;
    return static_cast<double>(sum[c]);
  }
};

// Writes a row of `result` from its weighted sum. total_excess bounds how much the denominator can
// be off, keys how many products there are.
template <class Real>
void write_out(const WeightedSum<Real>& from, double total_excess, size_t keys,
               const Arithmetic& arithmetic, size_t row, size_t out_row, Forward& result) {
  const size_t size = from.sum.size();
  for (size_t c = 0; c < size; ++c) {
    const size_t at = out_row * size + c;
    const double out = from.value(c);
    result.out[at] = out;
    result.out_terms[at] = from.terms[c];
    if (!std::isfinite(out)) continue;
    const double error = (1 + total_excess) * (from.excess[c] + total_excess * std::fabs(out));
    const double count = static_cast<double>(keys);
    const double underflow = arithmetic.tiny_weight * (from.magnitude[c] + count * std::fabs(out)) +
                             arithmetic.tiny * count;
    result.out_score[at] = (error + underflow) / arithmetic.roundoff;
    if (from.magnitude[c] >= arithmetic.output_range) result.row_beyond[row] = 1;
  }
}

Forward empty_result(int64_t rows, int64_t head_dim_v) {
  const auto n = static_cast<size_t>(rows), elements = static_cast<size_t>(rows * head_dim_v);
  Forward result;
  result.out.assign(elements, 0);
  result.out_terms.assign(elements, 0);
  result.out_score.assign(elements, 0);
  result.lse.assign(n, 0);
  result.lse_lo.assign(n, 0);
  result.lse_score.assign(n, 0);
  result.row_computed.assign(n, 0);
  result.row_used.assign(n, 0);
  result.row_beyond.assign(n, 0);
  result.row_keys.assign(n, 0);
  return result;
}

// lse, what its double lost, and its score error.
template <class Real>
void write_lse(Real lse, Real max, double lse_error, const Arithmetic& arithmetic, size_t row,
               Forward& result) {
  result.lse[row] = static_cast<double>(lse);
  if (!std::isfinite(lse)) return;
  result.lse_lo[row] = static_cast<double>(lse - Real(result.lse[row]));
  result.lse_score[row] =
      lse_error / arithmetic.roundoff + 4 * static_cast<double>(std::fabs(lse - max));
}

template <class Real>
class ForwardPass {
 public:
  ForwardPass(const Definition& definition, Forward& result)
      : d_(definition), arithmetic_(arithmetic_of(definition.problem.q.dtype)), result_(result) {}

  // All rows of one kv head of a sequence that are to be computed.
  void run(const Sequence& sequence, int64_t kv_head) {
    std::vector<std::pair<int64_t, int64_t>> rows;  // head, i
    for (int64_t g = 0; g < d_.group_size; ++g) {
      const int64_t head = kv_head * d_.group_size + g;
      for (int64_t i = 0; i < sequence.q_len; ++i) {
        const auto row = static_cast<size_t>(d_.lse_index(sequence, head, i));
        if (result_.row_computed[row] != 0) rows.emplace_back(head, i);
      }
    }
    if (rows.empty()) return;
    const Head<Real> k(d_, d_.problem.k, d_.args.k, sequence, kv_head, d_.head_dim);
    const Head<Real> v(d_, d_.problem.v, d_.args.v, sequence, kv_head, d_.head_dim_v);
    const double work = static_cast<double>(rows.size()) * static_cast<double>(sequence.kv_len) *
                        static_cast<double>(d_.head_dim + d_.head_dim_v);
    parallel(static_cast<int64_t>(rows.size()), work, 0, [&](int64_t n) {
      const auto [head, i] = rows[static_cast<size_t>(n)];
      run_row(Row(d_, sequence, head, i), k, v);
    });
  }

 private:
  void run_row(const Row& row, const Head<Real>& k, const Head<Real>& v) {
    const auto index = static_cast<size_t>(d_.lse_index(row.sequence, row.head, row.i));
    const auto out_row = static_cast<size_t>(d_.out_row(row.sequence, row.head, row.i));
    const auto head_dim_v = static_cast<size_t>(d_.head_dim_v);
    const std::vector<Real> q = query_row<Real>(row, d_.problem.q, d_.args.q, d_.head_dim);

    Softmax<Real> softmax;
    softmax.compute(row, q, k.data, arithmetic_.roundoff, arithmetic_.range);
    result_.row_used[index] = 1;
    result_.row_keys[index] = static_cast<int64_t>(softmax.keys.size());
    result_.row_beyond[index] = softmax.beyond;
    write_lse(softmax.lse, softmax.max, softmax.lse_error, arithmetic_, index, result_);
    if (softmax.is_nan) {
      std::fill_n(result_.out.begin() + static_cast<int64_t>(out_row * head_dim_v), head_dim_v,
                  kNaN);
      return;
    }
    WeightedSum<Real> sum(head_dim_v);
    for (size_t n = 0; n < softmax.keys.size(); ++n) {
      const int64_t key = softmax.keys[n];
      const Real factor = row.dropout_factor(key);
      sum.add(softmax.prob[n] * factor, softmax.excess[n] * static_cast<double>(factor),
              v.data.data() + static_cast<size_t>(key) * head_dim_v,
              v.finite[static_cast<size_t>(key)] != 0);
    }
    write_out(sum, softmax.total_excess, softmax.keys.size(), arithmetic_, index, out_row, result_);
  }

  const Definition& d_;
  const Arithmetic arithmetic_;
  Forward& result_;
};

template <class Real>
void run_forward(const Definition& definition, Forward& result) {
  ForwardPass<Real> pass(definition, result);
  for (const Sequence& sequence : definition.sequences) {
    for (int64_t kv_head = 0; kv_head < definition.kv_heads; ++kv_head) pass.run(sequence, kv_head);
  }
}

template <class Real>
void run_merge(const runmax_problem& problem, const runmax_args& args, Forward& result) {
  const runmax_tensor &partial_out = problem.partial_out, &partial_lse = problem.partial_lse;
  const Arithmetic arithmetic = arithmetic_of(partial_lse.dtype);
  const auto rows = static_cast<int64_t>(result.lse.size());
  const auto head_dim_v = partial_out.shape[partial_out.rank - 1];
  const int64_t parts = partial_lse.shape[0];
  const bool packed =
      partial_lse.rank == 3;  // [n, q_heads, total_q] beside [n, total_q, q_heads, .]

  for (int64_t row = 0; row < rows; ++row) {
    int64_t out_row = row;
    if (packed) {
      const int64_t heads = partial_lse.shape[1], tokens = partial_lse.shape[2];
      out_row = row % tokens * heads + row / tokens;
    }
    std::vector<int64_t> live;
    std::vector<Real> lses;
    Real max = -std::numeric_limits<Real>::infinity();
    bool is_nan = false;
    for (int64_t n = 0; n < parts; ++n) {
      const Real lse =
          load(partial_lse.dtype, args.partial_lse, element_offset(partial_lse, n * rows + row));
      if (lse == -std::numeric_limits<Real>::infinity()) continue;
      live.push_back(n);
      lses.push_back(lse);
      if (!std::isfinite(lse)) is_nan = true;
      max = std::max(max, lse);
    }

    const auto index = static_cast<size_t>(row);
    result.row_computed[index] = result.row_used[index] = 1;
    result.row_keys[index] = static_cast<int64_t>(live.size());
    if (live.empty()) {
      result.lse[index] = -kInf;
      continue;
    }
    if (is_nan) {
      result.lse[index] = kNaN;
      std::fill_n(result.out.begin() + out_row * head_dim_v, head_dim_v, kNaN);
      continue;
    }
    Real denominator = 0;
    for (const Real lse : lses) denominator += std::exp(lse - max);
    const Real lse = max + std::log(denominator);

    WeightedSum<Real> sum(static_cast<size_t>(head_dim_v));
    double total_excess = 0;
    std::vector<Real> values;
    for (size_t n = 0; n < live.size(); ++n) {
      values.clear();
      bool finite = true;
      for (int64_t c = 0; c < head_dim_v; ++c) {
        const int64_t number = (live[n] * rows + out_row) * head_dim_v + c;
        values.push_back(
            load(partial_out.dtype, args.partial_out, element_offset(partial_out, number)));
        finite = finite && std::isfinite(values.back());
      }
      const double error = 8 + 4 * static_cast<double>(max - lses[n]);
      const double excess =
          weight_excess(static_cast<double>(lses[n] - lse), arithmetic.roundoff * error);
      total_excess += excess;
      sum.add(std::exp(lses[n] - max) / denominator, excess, values.data(), finite);
    }
    write_lse(lse, max, std::log1p(total_excess), arithmetic, index, result);
    write_out(sum, total_excess, live.size(), arithmetic, index, static_cast<size_t>(out_row),
              result);
  }
}

}  // namespace

Forward forward(const runmax_problem& problem, const runmax_args& args,
                const std::vector<int64_t>& rows) {
  const Definition definition(problem, args);
  Forward result = empty_result(definition.rows(), definition.head_dim_v);
  for (size_t row = 0; row < result.lse.size(); ++row) result.row_computed[row] = rows.empty();
  for (const int64_t row : rows) result.row_computed[static_cast<size_t>(row)] = 1;
  for (size_t row = 0; row < result.lse.size(); ++row) {
    if (result.row_computed[row] != 0) result.lse[row] = -kInf;  // unless a sequence has the row
  }
  if (problem.q.dtype == RUNMAX_F64) {
    run_forward<long double>(definition, result);
  } else {
    run_forward<double>(definition, result);
  }
  for (const int64_t keys : result.row_keys) result.visible_pairs += static_cast<uint64_t>(keys);
  return result;
}

Forward merge(const runmax_problem& problem, const runmax_args& args) {
  const runmax_tensor& lse = problem.partial_lse;
  int64_t rows = 1;
  for (int d = 1; d < lse.rank; ++d) rows *= lse.shape[d];
  Forward result = empty_result(rows, problem.partial_out.shape[problem.partial_out.rank - 1]);
  if (lse.dtype == RUNMAX_F64) {
    run_merge<long double>(problem, args, result);
  } else {
    run_merge<double>(problem, args, result);
  }
  return result;
}

double unit_roundoff(runmax_dtype dtype) { return std::ldexp(1, -format(dtype).precision); }

runmax_dtype accumulator_type(runmax_dtype dtype) {
  return dtype == RUNMAX_F64 ? RUNMAX_F64 : RUNMAX_F32;
}

}  // namespace runmax::reference
