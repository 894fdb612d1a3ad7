// The float64 oracle: three plain loops written from docs/numerics.md. It shares no code with the
// kernels, the policies or the planner; it reads the same public structs that a caller fills.
// F64 problems are computed in long double. All pointers are host pointers.
#pragma once

#include <cstdint>
#include <vector>

#include "runmax/runmax.h"

namespace runmax::reference {

// Results in row-major order of the logical shape (strides of the caller's tensors play no part),
// with the magnitudes that the error gates need (docs/numerics.md).
struct Forward {
  std::vector<double> out;  // shape of problem.out
  std::vector<double> lse;  // shape of lse: [batch, q_heads, q_len] or [q_heads, total_q]
  // For gates, one per element of out / lse:
  std::vector<double> out_terms;  // sum_j p_ij |v_jd|
  std::vector<double> out_score;  // sum_j p_ij E_ij (|v_jd| + |out_id|)
  std::vector<double> lse_score;  // sum_j p_ij E_ij + |lse|
  std::vector<unsigned char> row_used;  // per lse element: 1 = the row belongs to a sequence
  uint64_t visible_pairs = 0;           // over all q_heads
};

// `rows`: empty = all, else only these flat lse indices are computed (the others stay 0).
Forward forward(const runmax_problem& problem, const runmax_args& args,
                const std::vector<int64_t>& rows = {});

}  // namespace runmax::reference
