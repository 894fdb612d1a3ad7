// From a checked problem and the arguments of an execution to the plain data that kernels read.
// Host code, header-only like the rest of this folder, so that every backend binds alike.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/problem.h"
#include "policy/forward_params.h"

namespace runmax::policy {

// Dimension i of a tensor that broadcasts where its size is 1.
inline int64_t broadcast_stride(const runmax_tensor& t, int i) {
  return t.shape[i] == 1 ? 0 : t.stride[i];
}

// A non-null stand-in for present tensors without elements, whose pointer may be null.
alignas(64) inline unsigned char no_elements[64];

inline Operand operand(const runmax_tensor& t, const void* pointer) {
  Operand x;
  if (!Problem::present(t)) return x;
  x.pointer = pointer != nullptr ? const_cast<void*>(pointer) : no_elements;
  x.dtype = t.dtype;
  return x;
}

// [batch, heads, rows, columns], or packed [rows, heads, columns].
inline Operand token_operand(const runmax_tensor& t, const void* pointer, bool packed) {
  Operand x = operand(t, pointer);
  if (packed) {
    x.row = t.stride[0];
    x.head = t.stride[1];
    x.column = t.stride[2];
  } else {
    x.batch = t.stride[0];
    x.head = t.stride[1];
    x.row = t.stride[2];
    x.column = t.stride[3];
  }
  return x;
}

// [batch, heads, rows], or packed [heads, rows].
inline Operand row_operand(const runmax_tensor& t, const void* pointer, bool packed) {
  Operand x = operand(t, pointer);
  x.batch = packed ? 0 : t.stride[0];
  x.head = t.stride[packed ? 0 : 1];
  x.row = t.stride[packed ? 1 : 2];
  return x;
}

// [1|batch, 1|q_heads, 1|q_len, 1|kv_len]
inline Operand pair_operand(const runmax_tensor& t, const void* pointer) {
  Operand x = operand(t, pointer);
  x.batch = broadcast_stride(t, 0);
  x.head = broadcast_stride(t, 1);
  x.row = broadcast_stride(t, 2);
  x.column = broadcast_stride(t, 3);
  return x;
}

// [q_heads] or [batch, q_heads]
inline Operand head_operand(const runmax_tensor& t, const void* pointer) {
  Operand x = operand(t, pointer);
  x.batch = t.rank == 2 ? t.stride[0] : 0;
  x.head = t.stride[t.rank == 2 ? 1 : 0];
  return x;
}

inline int64_t block_list_count(const Problem& problem) {
  const runmax_tensor& t = problem.raw.block_index;
  int64_t lists = 1;
  for (int d = 0; d < t.rank - 1; ++d) lists *= t.shape[d];
  return lists;
}

// The geometry of block selection; the lists themselves are prepared in the workspace.
inline void bind_blocks(const Problem& problem, ForwardParams& p) {
  const runmax_tensor& t = problem.raw.block_index;
  const int64_t heads = t.shape[p.packed ? 0 : 1];
  p.blocks.lists = block_list_count(problem);
  p.blocks.max_selected = t.shape[t.rank - 1];
  p.blocks.block_q = problem.raw.block_q;
  p.blocks.block_kv = problem.raw.block_kv;
  p.blocks.head_lists = t.shape[p.packed ? 1 : 2];
  p.blocks.batch_lists = heads * p.blocks.head_lists;
  p.blocks.heads_per_list = heads > 0 ? p.q_heads / heads : 1;
}

// Everything but pointers and tiles.
inline void bind_shape(const Problem& problem, ForwardParams& p) {
  p.packed = problem.packed;
  p.top_left = problem.raw.diagonal_alignment == RUNMAX_ALIGN_TOP_LEFT;
  p.keep_unused = problem.has(RUNMAX_KEEP_UNUSED);
  p.batch = problem.batch;
  p.q_heads = problem.q_heads;
  p.group_size = problem.group_size;
  p.q_len = problem.q_len;
  p.kv_len = problem.kv_len;
  p.total_q = problem.total_q;
  p.total_kv = problem.total_kv;
  if (problem.packed) {  // bias and mask hold the longest sequence, or broadcast
    for (const runmax_tensor* pairs : {&problem.raw.bias, &problem.raw.mask}) {
      if (!Problem::present(*pairs)) continue;
      if (pairs->shape[2] != 1) p.q_len = std::min(p.q_len, pairs->shape[2]);
      if (pairs->shape[3] != 1) p.kv_len = std::min(p.kv_len, pairs->shape[3]);
    }
  }
  p.head_dim = problem.head_dim;
  p.head_dim_v = problem.head_dim_v;
  p.q.dtype = problem.raw.q.dtype;
  p.scale = problem.scale;
  p.softcap = problem.raw.softcap;
  p.window_left = clamp_position<int64_t>(problem.window_left);
  p.window_right = clamp_position<int64_t>(problem.window_right);
  p.sink_tokens = clamp_position<int64_t>(problem.raw.sink_tokens);
  if (Problem::present(problem.raw.block_index)) bind_blocks(problem, p);
}

// The pointers of one execution, with their strides. Reads no data.
inline void bind_data(const Problem& problem, const runmax_args& args, ForwardParams& p) {
  const runmax_problem& raw = problem.raw;
  const bool packed = problem.packed;
  p.q = token_operand(raw.q, args.q, packed);
  p.k = token_operand(raw.k, args.k, packed);
  p.v = token_operand(raw.v, args.v, packed);
  p.out = token_operand(raw.out, args.out, packed);
  p.lse = row_operand(raw.lse, args.lse, packed);
  p.lse_lo = row_operand(raw.lse_lo, args.lse_lo, packed);
  p.bias = pair_operand(raw.bias, args.bias);
  p.mask = pair_operand(raw.mask, args.mask);
  p.alibi_slopes = head_operand(raw.alibi_slopes, args.alibi_slopes);
  p.sink = head_operand(raw.sink, args.sink);

  const auto per_batch = [](const runmax_tensor& t, const int32_t* pointer, const int32_t*& to,
                            int64_t& stride) {
    if (!Problem::present(t)) return;
    to = pointer;
    stride = t.stride[0];
  };
  per_batch(raw.seqused_q, args.seqused_q, p.seqused_q, p.seqused_q_stride);
  per_batch(raw.seqused_kv, args.seqused_kv, p.seqused_kv, p.seqused_kv_stride);
  per_batch(raw.prefix_len, args.prefix_len, p.prefix_len, p.prefix_len_stride);
  per_batch(raw.diagonal_offset, args.diagonal_offset, p.diagonal_offset, p.diagonal_offset_stride);
  per_batch(raw.cu_seqlens_q, args.cu_seqlens_q, p.cu_seqlens_q, p.cu_seqlens_q_stride);
  per_batch(raw.cu_seqlens_kv, args.cu_seqlens_kv, p.cu_seqlens_kv, p.cu_seqlens_kv_stride);
  if (Problem::present(raw.segment_ids_q)) {
    p.segment_ids_q = args.segment_ids_q;
    p.segment_ids_kv = args.segment_ids_kv;
    p.segment_q_batch = packed ? 0 : raw.segment_ids_q.stride[0];
    p.segment_q_stride = raw.segment_ids_q.stride[packed ? 0 : 1];
    p.segment_kv_batch = packed ? 0 : raw.segment_ids_kv.stride[0];
    p.segment_kv_stride = raw.segment_ids_kv.stride[packed ? 0 : 1];
  }
  if (raw.dropout > 0) {
    p.dropout = Dropout::make(raw.dropout, args.seed, args.offset);
    p.seed_pointer = args.seed_pointer;
    p.offset_pointer = args.offset_pointer;
  }
}

}  // namespace runmax::policy
