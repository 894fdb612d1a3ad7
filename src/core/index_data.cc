#include "core/index_data.h"

#include <string>

#include "core/tensor.h"

namespace runmax {
namespace {

// A one-dimensional index tensor, or none.
struct Column {
  const char* name;
  const int32_t* data = nullptr;
  int64_t stride = 0;

  Column(const char* name, const runmax_tensor& tensor, const int32_t* pointer)
      : name(name), data(Problem::present(tensor) ? pointer : nullptr), stride(tensor.stride[0]) {}

  bool present() const { return data != nullptr; }
  int64_t operator[](int64_t i) const { return data[i * stride]; }
  std::string entry(int64_t i) const { return std::string(name) + "[" + std::to_string(i) + "]"; }
  Status refuse(int64_t i, const std::string& rule) const {
    return Status::invalid(entry(i), "is " + std::to_string((*this)[i]) + ", must be " + rule);
  }
};

// The queries or the keys of every batch entry: declared length, and how much of it is in use.
struct Side {
  Column starts;  // cu_seqlens_*
  Column used;    // seqused_*
  int64_t total;
  int64_t dense_length;
  int64_t longest;  // max_*_len, 0 = none given
  const char* longest_name;
  int pair_dim;  // of this side in bias and mask

  int64_t length(int64_t b) const {
    return starts.present() ? starts[b + 1] - starts[b] : dense_length;
  }
  int64_t in_use(int64_t b) const { return used.present() ? used[b] : length(b); }
};

Status check_pair_room(const char* name, const runmax_tensor& tensor, int dim, int64_t length,
                       int64_t b) {
  if (!Problem::present(tensor) || tensor.shape[dim] == 1 || tensor.shape[dim] >= length) {
    return Status::ok();
  }
  return Status::invalid(std::string(name) + ".shape[" + std::to_string(dim) + "]",
                         "is " + std::to_string(tensor.shape[dim]) + ", must be 1 or at least " +
                             std::to_string(length) + " (the length of sequence " +
                             std::to_string(b) + ")");
}

Status check_starts(const Problem& problem, const Side& side) {
  const Column& starts = side.starts;
  if (!starts.present()) return Status::ok();
  if (starts[0] != 0) return starts.refuse(0, "0");
  for (int64_t b = 0; b < problem.batch; ++b) {
    const int64_t length = starts[b + 1] - starts[b];
    if (length < 0) {
      return starts.refuse(b + 1,
                           "at least " + std::to_string(starts[b]) + " (" + starts.entry(b) + ")");
    }
    if (starts[b + 1] > side.total) {
      return starts.refuse(b + 1, "at most " + std::to_string(side.total) + " (the total)");
    }
    if (side.longest > 0 && length > side.longest) {
      return starts.refuse(b + 1, "at most " + std::to_string(starts[b] + side.longest) + " (" +
                                      side.longest_name + " after " + starts.entry(b) + ")");
    }
    RUNMAX_RETURN_IF_ERROR(check_pair_room("bias", problem.raw.bias, side.pair_dim, length, b));
    RUNMAX_RETURN_IF_ERROR(check_pair_room("mask", problem.raw.mask, side.pair_dim, length, b));
  }
  return Status::ok();
}

Status check_used(const Problem& problem, const Side& side) {
  if (!side.used.present()) return Status::ok();
  for (int64_t b = 0; b < problem.batch; ++b) {
    const int64_t length = side.length(b);
    if (side.used[b] < 0 || side.used[b] > length) {
      return side.used.refuse(b, "in [0, " + std::to_string(length) + "]");
    }
  }
  return Status::ok();
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One row of block_index: the key blocks that one block of queries selects. `index` names the row.
Status check_selection(const int32_t* data, const runmax_tensor& blocks, int64_t num_blocks,
                       const int64_t* index) {
  const int last = blocks.rank - 1;
  for (int d = 0; d < last; ++d) data += index[d] * blocks.stride[d];
  for (int64_t i = 0; i < blocks.shape[last]; ++i) {
    const int32_t block = data[i * blocks.stride[last]];
    if (block < num_blocks) continue;  // negative entries are skipped
    std::string field = "block_index[";
    for (int d = 0; d < last; ++d) field += std::to_string(index[d]) + ", ";
    return Status::invalid(field + std::to_string(i) + "]",
                           "is " + std::to_string(block) + ", must be less than " +
                               std::to_string(num_blocks) +
                               " (the key blocks of its sequence), or negative");
  }
  return Status::ok();
}

Status check_blocks(const Problem& problem, const int32_t* data, const Side& q, const Side& kv) {
  const runmax_tensor& blocks = problem.raw.block_index;
  if (!Problem::present(blocks)) return Status::ok();
  const bool has_entries = element_count(blocks) != 0;
  const int64_t block_q = problem.raw.block_q;
  const int head_dim = problem.packed ? 0 : 1;
  const int64_t heads = blocks.shape[head_dim];
  int64_t first_block = 0;  // packed: where the sequence's q blocks begin
  for (int64_t b = 0; b < problem.batch; ++b) {
    const int64_t q_blocks = ceil_div(q.length(b), block_q);
    const int64_t num_blocks = ceil_div(kv.length(b), problem.raw.block_kv);
    if (problem.packed && first_block + q_blocks > blocks.shape[1]) {
      return Status::invalid("block_index.shape[1]",
                             "is " + std::to_string(blocks.shape[1]) + ", must be at least " +
                                 std::to_string(first_block + q_blocks) +
                                 " (the q blocks of sequences 0 to " + std::to_string(b) + ")");
    }
    // Blocks of unused rows may hold anything.
    const int64_t used_blocks = has_entries ? ceil_div(q.in_use(b), block_q) : 0;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < used_blocks; ++i) {
        const int64_t dense[] = {b, h, i};
        const int64_t packed[] = {h, first_block + i};
        RUNMAX_RETURN_IF_ERROR(
            check_selection(data, blocks, num_blocks, problem.packed ? packed : dense));
      }
    }
    first_block += q_blocks;
  }
  return Status::ok();
}

}  // namespace

Status check_index_data(const Problem& problem, const runmax_args& args) {
  const runmax_problem& raw = problem.raw;
  const Side q{{"cu_seqlens_q", raw.cu_seqlens_q, args.cu_seqlens_q},
               {"seqused_q", raw.seqused_q, args.seqused_q},
               problem.total_q,
               problem.q_len,
               raw.max_q_len,
               "max_q_len",
               2};
  const Side kv{{"cu_seqlens_kv", raw.cu_seqlens_kv, args.cu_seqlens_kv},
                {"seqused_kv", raw.seqused_kv, args.seqused_kv},
                problem.total_kv,
                problem.kv_len,
                raw.max_kv_len,
                "max_kv_len",
                3};
  RUNMAX_RETURN_IF_ERROR(check_starts(problem, q));
  RUNMAX_RETURN_IF_ERROR(check_starts(problem, kv));
  RUNMAX_RETURN_IF_ERROR(check_used(problem, q));
  RUNMAX_RETURN_IF_ERROR(check_used(problem, kv));

  const Column prefix{"prefix_len", raw.prefix_len, args.prefix_len};
  for (int64_t b = 0; prefix.present() && b < problem.batch; ++b) {
    if (prefix[b] < 0) return prefix.refuse(b, "at least 0");
  }
  return check_blocks(problem, args.block_index, q, kv);
}

}  // namespace runmax
