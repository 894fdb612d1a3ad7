// What a forward work item needs, as plain data, for every backend: the seam between the launch
// code and kernels that must not touch anything of std (objects of one instruction set, GPU code).
#pragma once

#include <cstdint>

#include "policy/dropout.h"
#include "policy/mask.h"
#include "policy/score.h"

namespace runmax::policy {

// A tensor by its roles. Missing and broadcast dimensions have stride 0; strides count elements.
struct Operand {
  void* pointer = nullptr;  // null = absent
  int32_t dtype = 0;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  int64_t column = 0;

  RUNMAX_INLINE bool present() const { return pointer != nullptr; }
};

// One sequence of the batch. Rows and keys are counted from its start.
struct Sequence {
  int64_t batch;    // index into per-batch operands
  int64_t q_start;  // packed: first token; dense: 0
  int64_t kv_start;
  int64_t q_len;    // rows of storage, all of which are written
  int64_t q_used;   // rows in use
  int64_t kv_used;  // keys in use
  int64_t offset;   // position of row 0 on the key axis
  int64_t prefix_len;
};

// Key blocks that blocks of rows selected, prepared: every list sorted, without duplicates.
struct BlockLists {
  const int32_t* entries = nullptr;  // [lists, max_selected]; null = no block selection
  const int32_t* counts = nullptr;   // [lists]
  int64_t lists = 0;
  int64_t max_selected = 0;
  int64_t block_q = 1;
  int64_t block_kv = 1;
  int64_t batch_lists = 0;         // lists between neighbours along batch ...
  int64_t head_lists = 0;          // ... and along the heads of block_index
  int64_t heads_per_list = 1;      // query heads that share one
  const int64_t* start = nullptr;  // [batch] packed: first block of a sequence; null when dense

  RUNMAX_INLINE bool active() const { return entries != nullptr; }
  RUNMAX_INLINE int64_t list(int64_t batch, int64_t head, int64_t q_block) const {
    const int64_t first = start != nullptr ? start[batch] : batch * batch_lists;
    const int64_t list = first + head / heads_per_list * head_lists + q_block;
    return list < lists ? list : (lists > 0 ? lists - 1 : 0);  // cut like lengths: sequence_of()
  }
};

struct ForwardParams {
  Operand q, k, v, out, lse, lse_lo;
  Operand bias, mask, alibi_slopes, sink;
  const int32_t* seqused_q = nullptr;
  const int32_t* seqused_kv = nullptr;
  const int32_t* prefix_len = nullptr;
  const int32_t* diagonal_offset = nullptr;
  const int32_t* segment_ids_q = nullptr;
  const int32_t* segment_ids_kv = nullptr;
  const int32_t* cu_seqlens_q = nullptr;  // both or none
  const int32_t* cu_seqlens_kv = nullptr;
  // Strides of the index tensors above, in elements.
  int64_t seqused_q_stride = 0, seqused_kv_stride = 0, prefix_len_stride = 0;
  int64_t diagonal_offset_stride = 0, cu_seqlens_q_stride = 0, cu_seqlens_kv_stride = 0;
  int64_t segment_q_batch = 0, segment_q_stride = 0, segment_kv_batch = 0, segment_kv_stride = 0;

  bool packed = false;
  bool top_left = false;
  bool keep_unused = false;
  int64_t batch = 0, q_heads = 0, group_size = 1;
  int64_t q_len = 0, kv_len = 0;  // dense: the lengths; packed: no sequence is longer
  int64_t total_q = 0, total_kv = 0;
  int64_t head_dim = 0, head_dim_v = 0;

  double scale = 1, softcap = 0;
  int64_t window_left = 0, window_right = 0, sink_tokens = 0;
  Dropout dropout;  // seed and offset by value; dropout_of() reads those given by pointer
  const uint64_t* seed_pointer = nullptr;
  const uint64_t* offset_pointer = nullptr;
  BlockLists blocks;

  // Tiles. Keys of one chunk are reduced on their own and chunk results are merged in order, so
  // that a row's bits do not depend on how chunks are spread over work items.
  int32_t q_tile = 0, kv_tile = 0;
  int64_t chunk = 0;  // keys, a multiple of kv_tile
  int32_t num_splits = 1;
  int64_t split_len = 0;  // keys of a split when num_splits > 1

  // Work: q tiles of sequence b are [tile_start[b], tile_start[b + 1]) (packed only; the last
  // sequence is the storage after the last token). Null when dense.
  const int64_t* tile_start = nullptr;
  int64_t tiles_per_sequence = 0;  // dense

  // Partial states, one per (split, head, token): acc [padded head_dim_v] and kPartialExtra.
  void* partial = nullptr;
};

// Elements of a partial state beside acc: max, sum, seen, and padding to a cache line.
inline constexpr int64_t kPartialExtra = 16;

}  // namespace runmax::policy
