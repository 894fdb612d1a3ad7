#include <algorithm>
#include <initializer_list>

#include "core/validate.h"

namespace runmax {
namespace {

// A named dimension. The first tensor that has it gives it its size; the others must agree.
struct Dim {
  const char* name;
  int64_t size = -1;
  const char* tensor = nullptr;  // which gave the size ...
  int index = 0;                 // ... and where

  std::string origin() const { return std::string(name) + ", " + shape_field(tensor, index); }
};

// One place of an expected shape.
struct Place {
  Place(Dim& dim) : dim(dim) {}
  Place(Dim& dim, bool one) : dim(dim), or_one(one) {}
  Dim& dim;
  bool or_one = false;  // 1 broadcasts
};

using Shape = std::initializer_list<Place>;

std::string describe(Shape shape) {
  std::string text = "[";
  for (const Place& place : shape) {
    if (text.size() > 1) text += ", ";
    if (place.or_one) text += "1 or ";
    text += place.dim.name;
  }
  return text + "]";
}

Status match(const char* name, const runmax_tensor& tensor, Shape shape) {
  if (tensor.rank != static_cast<int32_t>(shape.size())) {
    return Status::invalid(std::string(name) + ".rank",
                           "is " + std::to_string(tensor.rank) + ", must be " +
                               std::to_string(shape.size()) + " " + describe(shape));
  }
  int i = 0;
  for (const Place& place : shape) {
    const int64_t size = tensor.shape[i];
    Dim& dim = place.dim;
    if (dim.size < 0) {
      dim.size = size;
      dim.tensor = name;
      dim.index = i;
    } else if (dim.size != size && !(place.or_one && size == 1)) {
      return Status::invalid(shape_field(name, i), "is " + std::to_string(size) + ", must be " +
                                                       (place.or_one ? "1 or " : "") +
                                                       std::to_string(dim.size) + " (" +
                                                       dim.origin() + ")");
    }
    ++i;
  }
  return Status::ok();
}

struct Dims {
  Dim batch{"batch"};
  Dim q_heads{"q_heads"};
  Dim kv_heads{"kv_heads"};
  Dim q_len{"q_len"};
  Dim kv_len{"kv_len"};
  Dim total_q{"total_q"};
  Dim total_kv{"total_kv"};
  Dim head_dim{"head_dim"};
  Dim head_dim_v{"head_dim_v"};
};

#define RUNMAX_MATCH(tensor, ...)                                             \
  do {                                                                        \
    if (Problem::present(raw.tensor)) {                                       \
      RUNMAX_RETURN_IF_ERROR(match(#tensor, raw.tensor, Shape{__VA_ARGS__})); \
    }                                                                         \
  } while (false)

Status match_cu_seqlens(const char* name, const runmax_tensor& tensor, Dim& batch) {
  if (tensor.rank != 1) {
    return Status::invalid(std::string(name) + ".rank",
                           "is " + std::to_string(tensor.rank) + ", must be 1 [batch + 1]");
  }
  if (tensor.shape[0] < 1) {
    return Status::invalid(shape_field(name, 0), "is 0, must be batch + 1, at least 1");
  }
  if (batch.size < 0) {
    batch.size = tensor.shape[0] - 1;
    batch.tensor = name;
  } else if (batch.size != tensor.shape[0] - 1) {
    return Status::invalid(shape_field(name, 0), "is " + std::to_string(tensor.shape[0]) +
                                                     ", must be " + std::to_string(batch.size + 1) +
                                                     " (batch + 1, " +
                                                     shape_field(batch.tensor, 0) + ")");
  }
  return Status::ok();
}

Status match_main(const runmax_problem& raw, bool packed, Dims& d) {
  if (packed) {
    RUNMAX_RETURN_IF_ERROR(match_cu_seqlens("cu_seqlens_q", raw.cu_seqlens_q, d.batch));
    RUNMAX_RETURN_IF_ERROR(match_cu_seqlens("cu_seqlens_kv", raw.cu_seqlens_kv, d.batch));
    RUNMAX_MATCH(q, d.total_q, d.q_heads, d.head_dim);
    RUNMAX_MATCH(k, d.total_kv, d.kv_heads, d.head_dim);
    RUNMAX_MATCH(v, d.total_kv, d.kv_heads, d.head_dim_v);
    RUNMAX_MATCH(out, d.total_q, d.q_heads, d.head_dim_v);
    RUNMAX_MATCH(lse, d.q_heads, d.total_q);
    RUNMAX_MATCH(lse_lo, d.q_heads, d.total_q);
    RUNMAX_MATCH(segment_ids_q, d.total_q);
    RUNMAX_MATCH(segment_ids_kv, d.total_kv);
  } else {
    RUNMAX_MATCH(q, d.batch, d.q_heads, d.q_len, d.head_dim);
    RUNMAX_MATCH(k, d.batch, d.kv_heads, d.kv_len, d.head_dim);
    RUNMAX_MATCH(v, d.batch, d.kv_heads, d.kv_len, d.head_dim_v);
    RUNMAX_MATCH(out, d.batch, d.q_heads, d.q_len, d.head_dim_v);
    RUNMAX_MATCH(lse, d.batch, d.q_heads, d.q_len);
    RUNMAX_MATCH(lse_lo, d.batch, d.q_heads, d.q_len);
    RUNMAX_MATCH(segment_ids_q, d.batch, d.q_len);
    RUNMAX_MATCH(segment_ids_kv, d.batch, d.kv_len);
  }
  return Status::ok();
}

Status check_heads(const Dims& d) {
  const auto at_least_one = [](const Dim& dim) {
    if (dim.size > 0) return Status::ok();
    return Status::invalid(shape_field(dim.tensor, dim.index),
                           std::string("is 0, must be at least 1 (") + dim.name + ")");
  };
  RUNMAX_RETURN_IF_ERROR(at_least_one(d.head_dim));
  RUNMAX_RETURN_IF_ERROR(at_least_one(d.head_dim_v));
  const bool multiple =
      d.kv_heads.size > 0 ? d.q_heads.size % d.kv_heads.size == 0 : d.q_heads.size == 0;
  if (multiple) return Status::ok();
  return Status::invalid(shape_field(d.q_heads.tensor, d.q_heads.index),
                         "is " + std::to_string(d.q_heads.size) +
                             " (q_heads), must be a multiple of " +
                             std::to_string(d.kv_heads.size) + " (" + d.kv_heads.origin() + ")");
}

// Packed bias and mask are indexed within the sequence: a side is 1, or holds the longest one.
Status match_packed_pairs(const char* name, const runmax_tensor& tensor, const Problem& problem,
                          Dims& d) {
  Dim q_side{"longest q"};
  Dim kv_side{"longest kv"};
  RUNMAX_RETURN_IF_ERROR(
      match(name, tensor, {{d.batch, true}, {d.q_heads, true}, {q_side, true}, {kv_side, true}}));
  const int64_t bounds[] = {problem.raw.max_q_len, problem.raw.max_kv_len};
  const char* bound_names[] = {"max_q_len", "max_kv_len"};
  for (int side = 0; side < 2; ++side) {
    const int64_t size = tensor.shape[2 + side];
    if (size != 1 && size < bounds[side]) {
      return Status::invalid(shape_field(name, 2 + side),
                             "is " + std::to_string(size) + ", must be 1 or at least " +
                                 std::to_string(bounds[side]) + " (" + bound_names[side] + ")");
    }
  }
  return Status::ok();
}

Status match_pairs(const Problem& problem, Dims& d) {
  const runmax_problem& raw = problem.raw;
  if (problem.packed) {
    if (Problem::present(raw.bias)) {
      RUNMAX_RETURN_IF_ERROR(match_packed_pairs("bias", raw.bias, problem, d));
    }
    if (Problem::present(raw.mask)) {
      RUNMAX_RETURN_IF_ERROR(match_packed_pairs("mask", raw.mask, problem, d));
    }
    return Status::ok();
  }
  RUNMAX_MATCH(bias, {d.batch, true}, {d.q_heads, true}, {d.q_len, true}, {d.kv_len, true});
  RUNMAX_MATCH(mask, {d.batch, true}, {d.q_heads, true}, {d.q_len, true}, {d.kv_len, true});
  return Status::ok();
}

// [batch, heads, q_blocks, max_selected], packed [heads, q_blocks of all sequences, max_selected].
Status match_block_index(const Problem& problem, Dims& d) {
  const runmax_problem& raw = problem.raw;
  const runmax_tensor& blocks = raw.block_index;
  if (!Problem::present(blocks)) return Status::ok();
  Dim heads{"heads"};
  Dim q_blocks{"q_blocks"};
  Dim max_selected{"max_selected"};
  if (problem.packed) {
    // How many q blocks the sequences have is data: the argument check looks at it.
    RUNMAX_MATCH(block_index, heads, q_blocks, max_selected);
  } else {
    RUNMAX_MATCH(block_index, d.batch, heads, q_blocks, max_selected);
    // check_options() refuses a block_q outside of this range.
    const int64_t block_q = std::clamp<int64_t>(raw.block_q, 1, kMaxLength);
    const int64_t expected = (d.q_len.size + block_q - 1) / block_q;
    if (block_q == raw.block_q && q_blocks.size != expected) {
      return Status::invalid(shape_field("block_index", q_blocks.index),
                             "is " + std::to_string(q_blocks.size) + ", must be " +
                                 std::to_string(expected) + " (q_len / block_q, rounded up)");
    }
  }
  if (heads.size != 1 && heads.size != d.kv_heads.size && heads.size != d.q_heads.size) {
    return Status::invalid(shape_field("block_index", heads.index),
                           "is " + std::to_string(heads.size) + ", must be 1, " +
                               std::to_string(d.kv_heads.size) + " (kv_heads) or " +
                               std::to_string(d.q_heads.size) + " (q_heads)");
  }
  return Status::ok();
}

Status match_extras(const Problem& problem, Dims& d) {
  const runmax_problem& raw = problem.raw;
  RUNMAX_RETURN_IF_ERROR(match_pairs(problem, d));
  if (raw.alibi_slopes.rank == 1) {
    RUNMAX_MATCH(alibi_slopes, d.q_heads);
  } else if (raw.alibi_slopes.rank > 2) {
    return Status::invalid("alibi_slopes.rank", "is " + std::to_string(raw.alibi_slopes.rank) +
                                                    ", must be 1 [q_heads] or 2 [batch, q_heads]");
  } else {
    RUNMAX_MATCH(alibi_slopes, d.batch, d.q_heads);
  }
  RUNMAX_MATCH(sink, d.q_heads);
  RUNMAX_MATCH(seqused_q, d.batch);
  RUNMAX_MATCH(seqused_kv, d.batch);
  RUNMAX_MATCH(prefix_len, d.batch);
  RUNMAX_MATCH(diagonal_offset, d.batch);
  return match_block_index(problem, d);
}

Status match_merge(const runmax_problem& raw, bool packed, Dims& d, Dim& n) {
  if (packed) {
    RUNMAX_MATCH(partial_out, n, d.total_q, d.q_heads, d.head_dim_v);
    RUNMAX_MATCH(partial_lse, n, d.q_heads, d.total_q);
    RUNMAX_MATCH(out, d.total_q, d.q_heads, d.head_dim_v);
    RUNMAX_MATCH(lse, d.q_heads, d.total_q);
  } else {
    RUNMAX_MATCH(partial_out, n, d.batch, d.q_heads, d.q_len, d.head_dim_v);
    RUNMAX_MATCH(partial_lse, n, d.batch, d.q_heads, d.q_len);
    RUNMAX_MATCH(out, d.batch, d.q_heads, d.q_len, d.head_dim_v);
    RUNMAX_MATCH(lse, d.batch, d.q_heads, d.q_len);
  }
  return Status::ok();
}

Status match_gradients(const runmax_problem& raw) {
  for (const Operand& operand : operands()) {
    const runmax_tensor& gradient = raw.*operand.tensor;
    if (operand.like == nullptr || !Problem::present(gradient)) continue;
    const runmax_tensor& input = raw.*operand.like;
    const char* input_name = "";
    for (const Operand& other : operands()) {
      if (other.tensor == operand.like) input_name = other.name;
    }
    if (gradient.rank != input.rank) {
      return Status::invalid(std::string(operand.name) + ".rank",
                             "is " + std::to_string(gradient.rank) + ", must be " +
                                 std::to_string(input.rank) + " (" + input_name + ".rank)");
    }
    for (int32_t i = 0; i < input.rank; ++i) {
      if (gradient.shape[i] == input.shape[i]) continue;
      return Status::invalid(shape_field(operand.name, i),
                             "is " + std::to_string(gradient.shape[i]) + ", must be " +
                                 std::to_string(input.shape[i]) + " (" +
                                 shape_field(input_name, i) + ")");
    }
  }
  return Status::ok();
}

}  // namespace

Status check_shapes(Problem& problem, Mode mode) {
  const runmax_problem& raw = problem.raw;
  const bool merge = mode == Mode::kMerge || mode == Mode::kMergeGradient;
  problem.packed = merge ? raw.out.rank == 3 : Problem::present(raw.cu_seqlens_q);
  Dims d;
  Dim partials{"n"};
  if (merge) {
    RUNMAX_RETURN_IF_ERROR(match_merge(raw, problem.packed, d, partials));
    d.kv_heads.size = d.q_heads.size;
    d.head_dim.size = d.head_dim_v.size;
    d.kv_len.size = 0;
    d.total_kv.size = 0;
    if (problem.packed) d.batch.size = 1;  // merging knows no sequences
  } else {
    RUNMAX_RETURN_IF_ERROR(match_main(raw, problem.packed, d));
    RUNMAX_RETURN_IF_ERROR(check_heads(d));
    RUNMAX_RETURN_IF_ERROR(match_extras(problem, d));
  }
  RUNMAX_RETURN_IF_ERROR(match_gradients(raw));

  problem.batch = d.batch.size;
  problem.q_heads = d.q_heads.size;
  problem.kv_heads = d.kv_heads.size;
  problem.group_size = d.kv_heads.size > 0 ? d.q_heads.size / d.kv_heads.size : 1;
  problem.head_dim = d.head_dim.size;
  problem.head_dim_v = d.head_dim_v.size;
  problem.num_partials = std::max<int64_t>(partials.size, 0);
  if (problem.packed) {
    const auto longest = [](int64_t bound, int64_t total) {
      return bound > 0 ? std::min(bound, total) : total;
    };
    problem.total_q = d.total_q.size;
    problem.total_kv = d.total_kv.size;
    problem.q_len = longest(raw.max_q_len, problem.total_q);
    problem.kv_len = longest(raw.max_kv_len, problem.total_kv);
  } else {
    problem.q_len = d.q_len.size;
    problem.kv_len = d.kv_len.size;
    problem.total_q = problem.batch * problem.q_len;
    problem.total_kv = problem.batch * problem.kv_len;
  }

  // Work is counted in query/key pairs.
  int64_t pairs = 0;
  const bool overflow = __builtin_mul_overflow(problem.total_q, problem.kv_len, &pairs) ||
                        __builtin_mul_overflow(pairs, problem.q_heads, &pairs) || pairs > kMaxCount;
  if (overflow) {
    return Status::invalid("kv_len", "is " + std::to_string(problem.kv_len) +
                                         ", must give at most 2^62 query/key pairs over all heads");
  }
  return Status::ok();
}

}  // namespace runmax
