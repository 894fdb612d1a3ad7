#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/validate.h"

namespace runmax {
namespace {

constexpr double kSmallest = 0x1p-60;  // of |scale| and softcap, where not 0
constexpr double kLargest = 0x1p60;

Status must(const char* field, const std::string& value, const char* rule) {
  return Status::invalid(field, "is " + value + ", must be " + rule);
}

Status in_range(const char* field, int64_t value, int64_t low, int64_t high, const char* rule) {
  if (value >= low && value <= high) return Status::ok();
  return must(field, std::to_string(value), rule);
}

// A value whose bit in `present` is not set would be ignored without a word.
template <class T>
Status needs_bit(const char* field, T value, uint64_t present, uint64_t bit, const char* bit_name) {
  if (value == 0 || (present & bit) != 0) return Status::ok();
  return Status::invalid(field, "is " + to_text(value) + " without " + bit_name +
                                    " in present, must be 0 or have its bit set");
}

Status check_scale(Problem& problem) {
  const runmax_problem& raw = problem.raw;
  RUNMAX_RETURN_IF_ERROR(
      needs_bit("scale", raw.scale, raw.present, RUNMAX_PRESENT_SCALE, "RUNMAX_PRESENT_SCALE"));
  if ((raw.present & RUNMAX_PRESENT_SCALE) == 0) {
    problem.scale = problem.head_dim > 0 ? 1 / std::sqrt(static_cast<double>(problem.head_dim)) : 0;
    return Status::ok();
  }
  const double magnitude = std::fabs(raw.scale);
  if (magnitude != 0 && !(magnitude >= kSmallest && magnitude <= kLargest)) {
    return must("scale", to_text(raw.scale), "0 or of magnitude in [2^-60, 2^60]");
  }
  problem.scale = raw.scale;
  return Status::ok();
}

Status check_windows(Problem& problem) {
  const runmax_problem& raw = problem.raw;
  RUNMAX_RETURN_IF_ERROR(needs_bit("window_left", raw.window_left, raw.present,
                                   RUNMAX_PRESENT_WINDOW_LEFT, "RUNMAX_PRESENT_WINDOW_LEFT"));
  RUNMAX_RETURN_IF_ERROR(needs_bit("window_right", raw.window_right, raw.present,
                                   RUNMAX_PRESENT_WINDOW_RIGHT, "RUNMAX_PRESENT_WINDOW_RIGHT"));
  RUNMAX_RETURN_IF_ERROR(in_range("window_left", raw.window_left, 0, INT64_MAX,
                                  "at least 0 (leave out its bit in present for no bound)"));
  RUNMAX_RETURN_IF_ERROR(in_range("window_right", raw.window_right, 0, INT64_MAX,
                                  "at least 0 (leave out its bit in present for no bound)"));
  if (raw.present & RUNMAX_PRESENT_WINDOW_LEFT) {
    problem.window_left = std::min(raw.window_left, kUnbounded);
  }
  if (raw.present & RUNMAX_PRESENT_WINDOW_RIGHT) {
    problem.window_right = std::min(raw.window_right, kUnbounded);
  }
  if (problem.has(RUNMAX_CAUSAL)) problem.window_right = 0;
  return in_range("sink_tokens", raw.sink_tokens, 0, INT64_MAX, "at least 0");
}

Status check_blocks(const runmax_problem& raw) {
  if (Problem::present(raw.block_index)) {
    RUNMAX_RETURN_IF_ERROR(
        in_range("block_q", raw.block_q, 1, kMaxLength, "in [1, 2^40] with block_index"));
    return in_range("block_kv", raw.block_kv, 1, kMaxLength, "in [1, 2^40] with block_index");
  }
  RUNMAX_RETURN_IF_ERROR(in_range("block_q", raw.block_q, 0, 0, "0 without block_index"));
  return in_range("block_kv", raw.block_kv, 0, 0, "0 without block_index");
}

Status check_longest(const Problem& problem) {
  const runmax_problem& raw = problem.raw;
  const bool packed = problem.packed && raw.op != RUNMAX_MERGE;
  const int64_t high = packed ? kMaxLength : 0;
  const char* rule = packed ? "in [0, 2^40]" : "0 without cu_seqlens_q and cu_seqlens_kv";
  RUNMAX_RETURN_IF_ERROR(in_range("max_q_len", raw.max_q_len, 0, high, rule));
  return in_range("max_kv_len", raw.max_kv_len, 0, high, rule);
}

Status check_dropout(const Problem& problem) {
  const double p = problem.raw.dropout;
  if (!(p >= 0 && p <= 1)) return must("dropout", to_text(p), "in [0, 1]");
  if (p == 0) return Status::ok();
  // The Philox counter has 32 bits for each of these.
  constexpr int64_t kWord = int64_t{1} << 32;
  RUNMAX_RETURN_IF_ERROR(in_range("q_len", problem.q_len, 0, kWord, "at most 2^32 with dropout"));
  RUNMAX_RETURN_IF_ERROR(
      in_range("kv_len", problem.kv_len, 0, 4 * kWord, "at most 2^34 with dropout"));
  return in_range("batch", problem.batch * problem.q_heads, 0, kWord,
                  "at most 2^32 (batch * q_heads) with dropout");
}

Status check_softcap(const runmax_problem& raw) {
  if (raw.softcap == 0 || (raw.softcap >= kSmallest && raw.softcap <= kLargest)) {
    return Status::ok();
  }
  return must("softcap", to_text(raw.softcap), "0 or in [2^-60, 2^60]");
}

Status check_kernel_name(const char* kernel) {
  if (kernel == nullptr) return Status::ok();
  constexpr size_t kRoom = sizeof(runmax_plan_info::kernel);
  const size_t length = strnlen(kernel, kRoom);
  const bool printable =
      std::all_of(kernel, kernel + length, [](char c) { return c > ' ' && c < 127; });
  if (length > 0 && length < kRoom && printable) return Status::ok();
  return must("kernel",
              length == 0       ? "empty"
              : length == kRoom ? "longer than 63 characters"
                                : "a text with blanks or control characters",
              "NULL or the name of a kernel");
}

// Attention's options mean nothing to a merge; ignoring one would change what was asked for.
Status check_merge_options(const runmax_problem& raw) {
  const auto none = [](const char* field, auto value) {
    if (value == 0) return Status::ok();
    return must(field, to_text(value), "0 for RUNMAX_MERGE");
  };
  RUNMAX_RETURN_IF_ERROR(none("present", raw.present));
  RUNMAX_RETURN_IF_ERROR(none("flags", raw.flags & (RUNMAX_CAUSAL | RUNMAX_KEEP_UNUSED)));
  RUNMAX_RETURN_IF_ERROR(none("softcap", raw.softcap));
  RUNMAX_RETURN_IF_ERROR(none("dropout", raw.dropout));
  RUNMAX_RETURN_IF_ERROR(none("sink_tokens", raw.sink_tokens));
  RUNMAX_RETURN_IF_ERROR(none("diagonal_alignment", raw.diagonal_alignment));
  return none("num_splits", raw.num_splits);
}

}  // namespace

Status check_options(Problem& problem, Mode mode) {
  const runmax_problem& raw = problem.raw;
  if (mode == Mode::kMerge || mode == Mode::kMergeGradient) {
    RUNMAX_RETURN_IF_ERROR(check_merge_options(raw));
  }
  RUNMAX_RETURN_IF_ERROR(check_scale(problem));
  RUNMAX_RETURN_IF_ERROR(check_softcap(raw));
  RUNMAX_RETURN_IF_ERROR(check_dropout(problem));
  RUNMAX_RETURN_IF_ERROR(check_windows(problem));
  RUNMAX_RETURN_IF_ERROR(check_blocks(raw));
  RUNMAX_RETURN_IF_ERROR(check_longest(problem));
  RUNMAX_RETURN_IF_ERROR(in_range("diagonal_alignment", raw.diagonal_alignment,
                                  RUNMAX_ALIGN_BOTTOM_RIGHT, RUNMAX_ALIGN_TOP_LEFT,
                                  "RUNMAX_ALIGN_BOTTOM_RIGHT (0) or RUNMAX_ALIGN_TOP_LEFT (1)"));
  RUNMAX_RETURN_IF_ERROR(
      in_range("num_splits", raw.num_splits, 0, INT32_MAX, "at least 0 (0: the planner decides)"));
  if (problem.has(RUNMAX_BATCH_INVARIANT)) {  // the size of a split is then fixed, not their number
    RUNMAX_RETURN_IF_ERROR(
        in_range("num_splits", raw.num_splits, 0, 1, "0 or 1 with RUNMAX_BATCH_INVARIANT"));
  }
  return check_kernel_name(raw.kernel);
}

}  // namespace runmax
