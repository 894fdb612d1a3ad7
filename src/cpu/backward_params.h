// What the backward kernel needs, as plain data: forward's parameters and the gradients.
#pragma once

#include "cpu/forward_params.h"

namespace runmax::cpu {

struct BackwardParams {
  ForwardParams forward;  // q_tile, kv_tile and tile_start are the backward's own
  Operand d_out, d_lse;   // upstream; an absent one is zero
  Operand d_q, d_k, d_v, d_bias, d_sink, d_alibi_slopes;  // absent = not asked for
  int64_t d_bias_shape[4] = {};

  // The keys of a sequence are cut into `chunks` of chunk_len; a work item is one chunk of one kv
  // head. Each has its own partial d_q, and partials are added in order of chunks.
  int64_t chunks = 1;
  int64_t chunk_len = 0;
  int64_t q_tiles = 0;  // over all sequences; an upper bound when packed

  // Workspace. T is float, or double for F64 problems.
  void* row_term = nullptr;         // T [q_heads, total_q]: d_lse - sum_d d_out out
  void* d_q_partial = nullptr;      // T [chunks, q_heads, q_tiles, head_dim, q_tile]
  double* alibi_partial = nullptr;  // [chunks, batch, q_heads]
};

// What an ISA object offers. Each function does one item; the numbers of items are in backward.cc.
struct BackwardKernel {
  size_t (*scratch_bytes)(const BackwardParams&);
  void (*row_terms)(const BackwardParams&, int64_t item, std::byte* scratch);  // (head, q tile)
  void (*keys)(const BackwardParams&, int64_t item, std::byte* scratch);  // (batch, kv head, chunk)
  void (*queries)(const BackwardParams&, int64_t item, std::byte* scratch);  // (head, q tile)
  void (*bias)(const BackwardParams&, int64_t item, std::byte* scratch);     // tile of d_bias
  void (*head)(const BackwardParams&, int64_t item, std::byte* scratch);  // d_sink, d_alibi_slopes
};

}  // namespace runmax::cpu
