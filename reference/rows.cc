#include "reference/rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>

#include "reference/number.h"
#include "reference/philox.h"

namespace runmax::reference {
namespace {

bool present(const runmax_tensor& tensor) { return tensor.dtype != RUNMAX_DTYPE_NONE; }

int64_t entry(const runmax_tensor& tensor, const int32_t* data, int64_t index) {
  return data[index * tensor.stride[0]];
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Definition::Definition(const runmax_problem& problem, const runmax_args& args)
    : problem(problem), args(args), packed(present(problem.cu_seqlens_q)) {
  const runmax_tensor &q = problem.q, &k = problem.k, &v = problem.v;
  q_heads = q.shape[1];
  kv_heads = k.shape[1];
  group_size = kv_heads > 0 ? q_heads / kv_heads : 1;
  head_dim = q.shape[q.rank - 1];
  head_dim_v = v.shape[v.rank - 1];
  q_rows = packed ? q.shape[0] : q.shape[2];
  scale = (problem.present & RUNMAX_PRESENT_SCALE) != 0
              ? problem.scale
              : 1 / std::sqrt(static_cast<double>(head_dim));

  const int64_t batch = packed ? problem.cu_seqlens_q.shape[0] - 1 : q.shape[0];
  int64_t q_blocks = 0;
  for (int64_t b = 0; b < batch; ++b) {
    Sequence s;
    s.batch = b;
    s.q_len = packed ? 0 : q.shape[2];
    s.kv_len = packed ? 0 : k.shape[2];
    if (packed) {
      s.q_start = entry(problem.cu_seqlens_q, args.cu_seqlens_q, b);
      s.q_len = entry(problem.cu_seqlens_q, args.cu_seqlens_q, b + 1) - s.q_start;
      s.kv_start = entry(problem.cu_seqlens_kv, args.cu_seqlens_kv, b);
      s.kv_len = entry(problem.cu_seqlens_kv, args.cu_seqlens_kv, b + 1) - s.kv_start;
      s.first_q_block = q_blocks;
      if (problem.block_q > 0) q_blocks += ceil_div(s.q_len, problem.block_q);
    }
    if (present(problem.seqused_q)) s.q_len = entry(problem.seqused_q, args.seqused_q, b);
    if (present(problem.seqused_kv)) s.kv_len = entry(problem.seqused_kv, args.seqused_kv, b);
    if (problem.diagonal_alignment == RUNMAX_ALIGN_BOTTOM_RIGHT) s.diagonal = s.kv_len - s.q_len;
    if (present(problem.diagonal_offset)) {
      s.diagonal = entry(problem.diagonal_offset, args.diagonal_offset, b);
    }
    if (present(problem.prefix_len)) s.prefix_len = entry(problem.prefix_len, args.prefix_len, b);
    sequences.push_back(s);
  }
}

int64_t Definition::rows() const {
  return q_heads * q_rows * (packed ? 1 : static_cast<int64_t>(sequences.size()));
}

int64_t Definition::lse_index(const Sequence& sequence, int64_t head, int64_t i) const {
  return packed ? head * q_rows + sequence.q_start + i
                : (sequence.batch * q_heads + head) * q_rows + i;
}

int64_t Definition::out_row(const Sequence& sequence, int64_t head, int64_t i) const {
  return packed ? (sequence.q_start + i) * q_heads + head : lse_index(sequence, head, i);
}

int64_t Definition::offset(const runmax_tensor& tensor, const Sequence& sequence, int64_t start,
                           int64_t head, int64_t i) const {
  return packed
             ? (start + i) * tensor.stride[0] + head * tensor.stride[1]
             : sequence.batch * tensor.stride[0] + head * tensor.stride[1] + i * tensor.stride[2];
}

int64_t Definition::kv_row(const Sequence& sequence, int64_t head, int64_t key) const {
  return packed ? (sequence.kv_start + key) * kv_heads + head
                : (sequence.batch * kv_heads + head) * problem.k.shape[2] + key;
}

int64_t Definition::slope_number(const Sequence& sequence, int64_t head) const {
  return problem.alibi_slopes.rank == 1 ? head : sequence.batch * q_heads + head;
}

Row::Row(const Definition& definition, const Sequence& sequence, int64_t head, int64_t i)
    : definition(definition), sequence(sequence), head(head), i(i) {
  const runmax_problem& problem = definition.problem;
  if (present(problem.alibi_slopes)) {
    const runmax_tensor& slopes = problem.alibi_slopes;
    slope_ = load(slopes.dtype, definition.args.alibi_slopes,
                  element_offset(slopes, definition.slope_number(sequence, head)));
  }
  if (present(problem.block_index)) {
    const runmax_tensor& blocks = problem.block_index;
    const int head_axis = definition.packed ? 0 : 1;
    const int64_t heads = blocks.shape[head_axis];
    int64_t at = (heads == definition.q_heads ? head
                  : heads == 1                ? 0
                                              : head / definition.group_size) *
                 blocks.stride[head_axis];
    if (!definition.packed) at += sequence.batch * blocks.stride[0];
    at += (sequence.first_q_block + i / problem.block_q) * blocks.stride[head_axis + 1];
    selected_.assign(static_cast<size_t>(ceil_div(sequence.kv_len, problem.block_kv)), false);
    for (int64_t n = 0; n < blocks.shape[head_axis + 2]; ++n) {
      const int64_t block = definition.args.block_index[at + n * blocks.stride[head_axis + 2]];
      // A block past seqused_kv, but within the storage, holds no visible key.
      if (block >= 0 && block < static_cast<int64_t>(selected_.size())) {
        selected_[static_cast<size_t>(block)] = true;
      }
    }
  }
}

bool Row::sees(int64_t key) const {
  const runmax_problem& problem = definition.problem;
  const runmax_args& args = definition.args;
  const int64_t behind = i + sequence.diagonal - key;  // how far the key lies before the diagonal
  if (key >= sequence.kv_len) return false;
  if ((problem.present & RUNMAX_PRESENT_WINDOW_LEFT) != 0 && behind > problem.window_left &&
      key >= problem.sink_tokens) {
    return false;
  }
  const bool beyond_window =
      (problem.present & RUNMAX_PRESENT_WINDOW_RIGHT) != 0 && -behind > problem.window_right;
  const bool beyond_diagonal = (problem.flags & RUNMAX_CAUSAL) != 0 && behind < 0;
  if ((beyond_window || beyond_diagonal) && key >= sequence.prefix_len) return false;
  if (present(problem.segment_ids_q)) {
    const runmax_tensor &ids_q = problem.segment_ids_q, &ids_kv = problem.segment_ids_kv;
    const int64_t at_q = definition.packed ? (sequence.q_start + i) * ids_q.stride[0]
                                           : sequence.batch * ids_q.stride[0] + i * ids_q.stride[1];
    const int64_t at_kv = definition.packed
                              ? (sequence.kv_start + key) * ids_kv.stride[0]
                              : sequence.batch * ids_kv.stride[0] + key * ids_kv.stride[1];
    if (args.segment_ids_q[at_q] != args.segment_ids_kv[at_kv]) return false;
  }
  if (present(problem.mask) &&
      broadcast_element(problem.mask, args.mask, sequence.batch, head, i, key) == 0) {
    return false;
  }
  if (present(problem.block_index) && !selected_[static_cast<size_t>(key / problem.block_kv)]) {
    return false;
  }
  return bias(key) != -std::numeric_limits<double>::infinity();
}

double Row::bias(int64_t key) const {
  const runmax_tensor& bias = definition.problem.bias;
  if (!present(bias)) return 0;
  return broadcast_element(bias, definition.args.bias, sequence.batch, head, i, key);
}

int64_t Row::distance(int64_t key) const { return std::llabs(i + sequence.diagonal - key); }

long double Row::alibi(int64_t key) const {
  if (!present(definition.problem.alibi_slopes)) return 0;
  return -static_cast<long double>(slope_) * static_cast<long double>(distance(key));
}

double Row::sink() const {
  const runmax_tensor& sink = definition.problem.sink;
  return load(sink.dtype, definition.args.sink, head * sink.stride[0]);
}

double Row::dropout_factor(int64_t key) const {
  const double p = definition.problem.dropout;
  if (p == 0) return 1;
  const runmax_args& args = definition.args;
  const uint64_t seed = args.seed_pointer != nullptr ? *args.seed_pointer : args.seed;
  const uint64_t offset = args.offset_pointer != nullptr ? *args.offset_pointer : args.offset;
  const int64_t batch_head = sequence.batch * definition.q_heads + head;
  const auto word =
      philox({static_cast<uint32_t>(key / 4), static_cast<uint32_t>(i),
              static_cast<uint32_t>(batch_head), static_cast<uint32_t>(offset)},
             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32 ^ offset >> 32)});
  const auto threshold = static_cast<uint64_t>(p * 0x1p32);  // the floor: p is not negative
  return word[static_cast<size_t>(key % 4)] >= threshold ? 1 / (1 - p) : 0;
}

int64_t broadcast_number(const runmax_tensor& tensor, int64_t batch, int64_t head, int64_t i,
                         int64_t key) {
  const int64_t index[4] = {batch, head, i, key};
  int64_t number = 0;
  for (int d = 0; d < tensor.rank; ++d) {
    const int64_t at = tensor.shape[d] == 1 ? 0 : index[4 - tensor.rank + d];
    number = number * tensor.shape[d] + at;
  }
  return number;
}

double broadcast_element(const runmax_tensor& tensor, const void* data, int64_t batch, int64_t head,
                         int64_t i, int64_t key) {
  return load(tensor.dtype, data,
              element_offset(tensor, broadcast_number(tensor, batch, head, i, key)));
}

void parallel(int64_t count, double work, int threads, const std::function<void(int64_t)>& body) {
  constexpr double kWorthThreads = 1e6;
  if (threads == 0) threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (work < kWorthThreads) threads = 1;
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto run = [&] {
    try {
      for (int64_t index; (index = next.fetch_add(1)) < count;) body(index);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      failure = std::current_exception();
      next = count;
    }
  };
  std::vector<std::thread> others;
  try {
    for (int t = 1; t < std::min<int64_t>(threads, count); ++t) others.emplace_back(run);
  } catch (const std::system_error&) {
    // Fewer threads than wished for do the same work.
  }
  run();
  for (std::thread& thread : others) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace runmax::reference
