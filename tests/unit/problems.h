// Well-formed problems of every operation, with every operand that the operation takes.
#pragma once

#include "core/tensor.h"
#include "runmax/runmax.h"

namespace runmax::testing {

// batch 2, q_heads 6, kv_heads 3, q_len 5, kv_len 7, head_dim 4, head_dim_v 8
inline runmax_problem forward_problem() {
  runmax_problem p{};
  p.struct_size = sizeof p;
  p.op = RUNMAX_FORWARD;
  p.q = make_tensor(RUNMAX_F32, {2, 6, 5, 4});
  p.k = make_tensor(RUNMAX_F32, {2, 3, 7, 4});
  p.v = make_tensor(RUNMAX_F32, {2, 3, 7, 8});
  p.out = make_tensor(RUNMAX_F32, {2, 6, 5, 8});
  p.lse = make_tensor(RUNMAX_F32, {2, 6, 5});
  p.lse_lo = make_tensor(RUNMAX_F32, {2, 6, 5});
  p.bias = make_tensor(RUNMAX_F32, {1, 6, 5, 7});
  p.mask = make_tensor(RUNMAX_BOOL, {2, 1, 1, 7});
  p.alibi_slopes = make_tensor(RUNMAX_F32, {6});
  p.sink = make_tensor(RUNMAX_F32, {6});
  p.seqused_q = make_tensor(RUNMAX_I32, {2});
  p.seqused_kv = make_tensor(RUNMAX_I32, {2});
  p.prefix_len = make_tensor(RUNMAX_I32, {2});
  p.diagonal_offset = make_tensor(RUNMAX_I32, {2});
  p.segment_ids_q = make_tensor(RUNMAX_I32, {2, 5});
  p.segment_ids_kv = make_tensor(RUNMAX_I32, {2, 7});
  p.block_index = make_tensor(RUNMAX_I32, {2, 3, 3, 2});
  p.block_q = 2;
  p.block_kv = 3;
  return p;
}

inline runmax_problem backward_problem() {
  runmax_problem p = forward_problem();
  p.op = RUNMAX_BACKWARD;
  p.d_out = p.out;
  p.d_lse = p.lse;
  p.d_q = p.q;
  p.d_k = p.k;
  p.d_v = p.v;
  p.d_bias = p.bias;
  p.d_sink = p.sink;
  p.d_alibi_slopes = p.alibi_slopes;
  return p;
}

// Three sequences: 11 queries and 13 keys in all.
inline runmax_problem packed_problem() {
  runmax_problem p{};
  p.struct_size = sizeof p;
  p.op = RUNMAX_FORWARD;
  p.q = make_tensor(RUNMAX_F32, {11, 6, 4});
  p.k = make_tensor(RUNMAX_F32, {13, 3, 4});
  p.v = make_tensor(RUNMAX_F32, {13, 3, 8});
  p.out = make_tensor(RUNMAX_F32, {11, 6, 8});
  p.lse = make_tensor(RUNMAX_F32, {6, 11});
  p.cu_seqlens_q = make_tensor(RUNMAX_I32, {4});
  p.cu_seqlens_kv = make_tensor(RUNMAX_I32, {4});
  p.seqused_q = make_tensor(RUNMAX_I32, {3});
  p.seqused_kv = make_tensor(RUNMAX_I32, {3});
  p.segment_ids_q = make_tensor(RUNMAX_I32, {11});
  p.segment_ids_kv = make_tensor(RUNMAX_I32, {13});
  p.bias = make_tensor(RUNMAX_F32, {1, 6, 6, 8});
  p.alibi_slopes = make_tensor(RUNMAX_F32, {3, 6});
  p.block_index = make_tensor(RUNMAX_I32, {6, 7, 2});
  p.block_q = 2;
  p.block_kv = 3;
  p.max_q_len = 6;
  p.max_kv_len = 8;
  return p;
}

inline runmax_problem merge_problem() {
  runmax_problem p{};
  p.struct_size = sizeof p;
  p.op = RUNMAX_MERGE;
  p.partial_out = make_tensor(RUNMAX_F32, {3, 2, 6, 5, 8});
  p.partial_lse = make_tensor(RUNMAX_F32, {3, 2, 6, 5});
  p.out = make_tensor(RUNMAX_F32, {2, 6, 5, 8});
  p.lse = make_tensor(RUNMAX_F32, {2, 6, 5});
  return p;
}

inline runmax_problem merge_gradient_problem() {
  runmax_problem p = merge_problem();
  p.d_out = p.out;
  p.d_lse = p.lse;
  p.d_partial_out = p.partial_out;
  p.d_partial_lse = p.partial_lse;
  return p;
}

}  // namespace runmax::testing
