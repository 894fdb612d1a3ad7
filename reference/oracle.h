// The float64 oracle: three plain loops written from docs/numerics.md. It shares no code with the
// kernels, the policies or the planner; it reads the same public structs that a caller fills.
// F64 problems are computed in long double. All pointers are host pointers, and the problem is one
// that runmax_validate() accepts.
#pragma once

#include <cstdint>
#include <vector>

#include "runmax/runmax.h"

namespace runmax::reference {

// Results in row-major order of the logical shape (strides of the caller's tensors play no part),
// with the magnitudes that the error gates need (docs/numerics.md). A "row" is one element of lse.
struct Forward {
  std::vector<double> out;     // shape of problem.out
  std::vector<double> lse;     // [batch, q_heads, q_len] or [q_heads, total_q]
  std::vector<double> lse_lo;  // what rounding lse to double lost: 0 unless computed in long double

  // For the gates. Score errors are in units of unit_roundoff(accumulator type).
  std::vector<double> out_terms;  // per element of out: sum_j p_ij |v_jd|
  std::vector<double> out_score;  // per element of out: sum_j p_ij E_ij (|v_jd| + |out_id|)
  std::vector<double> lse_score;  // per row: sum_j p_ij E_ij + 4 |lse - max|

  // Per row.
  std::vector<unsigned char> row_computed;  // 0 = left out by `rows`
  std::vector<unsigned char> row_used;      // 1 = the row belongs to a sequence
  std::vector<unsigned char> row_beyond;    // 1 = past the contract's range: non-finite is allowed
  std::vector<int64_t> row_keys;            // visible keys

  uint64_t visible_pairs = 0;  // over all computed rows of all q_heads

  int64_t head_dim_v() const {
    return lse.empty() ? 0 : static_cast<int64_t>(out.size() / lse.size());
  }
};

// `rows`: empty = all, else only these flat lse indices are computed (the others stay 0).
// Rows run on all hardware threads; the bits do not depend on their number.
Forward forward(const runmax_problem& problem, const runmax_args& args,
                const std::vector<int64_t>& rows = {});

// op = RUNMAX_MERGE. n may be 0: every row is then empty. row_keys counts the parts that are not
// -inf; visible_pairs stays 0.
Forward merge(const runmax_problem& problem, const runmax_args& args);

// 2^-24 for F32, 2^-53 for F64, 2^-8 for BF16, 2^-11 for F16: half the spacing at 1.
double unit_roundoff(runmax_dtype dtype);
// What an implementation accumulates in: F64 for F64, else F32.
runmax_dtype accumulator_type(runmax_dtype dtype);

}  // namespace runmax::reference
