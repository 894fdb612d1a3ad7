// The float64 oracle of the gradients: plain loops written from docs/numerics.md. It recomputes
// everything from q, k, v and the upstream gradients; the out and lse that a kernel is given play
// no part, only how far rounding may have moved them. F64 problems are computed in long double.
#pragma once

#include <cstdint>
#include <vector>

#include "runmax/runmax.h"

namespace runmax::reference {

// What reaches an element of a gradient.
enum class Reach : unsigned char {
  kSkipped,  // not computed: left out by `rows`
  kUnused,   // it belongs to no sequence: 0, or left alone with RUNMAX_KEEP_UNUSED
  kNothing,  // no visible pair: exactly 0
  kPairs,
  kBeyond,  // pairs past the contract's range: non-finite is allowed
};

// In row-major order of the tensor's shape. Empty when the problem does not ask for it.
struct Gradient {
  std::vector<double> value;  // inf and nan say the same: not finite
  std::vector<double> error;  // how far off an implementation may be before it rounds the result
  std::vector<Reach> reach;
};

struct Backward {
  Gradient d_q, d_k, d_v, d_bias, d_sink, d_alibi_slopes;  // op = RUNMAX_BACKWARD
  Gradient d_partial_out, d_partial_lse;                   // op = RUNMAX_MERGE
  uint64_t visible_pairs = 0;                              // of the computed rows of all q_heads
};

// `rows`: empty = all, else only d_q of these flat lse indices; other gradients stay skipped. The
// bits do not depend on the number of threads.
Backward backward(const runmax_problem& problem, const runmax_args& args,
                  const std::vector<int64_t>& rows = {});

// The gradients of op = RUNMAX_MERGE.
Backward merge_backward(const runmax_problem& problem, const runmax_args& args);

}  // namespace runmax::reference
