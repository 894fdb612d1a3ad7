// The checked, normalised problem: what validate() makes of a runmax_problem, and what everything
// behind the C boundary works on.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "core/status.h"
#include "runmax/runmax.h"

namespace runmax {

// "No bound" for windows. Small enough that adding any position to it cannot overflow.
inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max() / 4;

struct Problem {
  // The caller's description in the current layout (fields that an older struct lacks are zero).
  // raw.kernel is null: the name lives in `kernel`.
  runmax_problem raw{};
  std::string kernel;  // forced kernel, empty = the planner decides

  bool packed = false;  // cu_seqlens_* are given
  int64_t batch = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t group_size = 1;  // q_heads / kv_heads; query head h reads kv head h / group_size
  int64_t q_len = 0;       // dense: the length. packed: max_q_len, or total_q when not given
  int64_t kv_len = 0;      // likewise
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  int64_t total_q = 0;   // tokens over all sequences: batch * q_len when dense
  int64_t total_kv = 0;  // likewise

  double scale = 0;                   // resolved: 1/sqrt(head_dim) when not given
  int64_t window_left = kUnbounded;   // resolved
  int64_t window_right = kUnbounded;  // resolved; causal makes it min(window_right, 0)
  int64_t num_partials = 0;           // merge: n

  bool has(uint64_t flag) const { return (raw.flags & flag) != 0; }
  static bool present(const runmax_tensor& tensor) { return tensor.dtype != RUNMAX_DTYPE_NONE; }
};

// Ill-formed problems are refused with the field, its value and the rule. Needs no device; whether
// a kernel exists is another question (plan/).
Result<Problem> validate(const runmax_problem& problem);

}  // namespace runmax
