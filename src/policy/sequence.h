// From a work item to what it works on: sequence, head, rows, keys.
#pragma once

#include "policy/forward_params.h"

namespace runmax::policy {

RUNMAX_INLINE int64_t clamped(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : (value > high ? high : value);
}

// Sequence b of the batch. Packed storage after the last token is sequence number p.batch, without
// a row in use. Lengths are cut to the storage that the problem declares: index tensors on a GPU
// are not checked beforehand, and no value of theirs may lead out of bounds.
RUNMAX_INLINE Sequence sequence_of(const ForwardParams& p, int64_t b) {
  Sequence s{};
  s.batch = b;
  if (p.packed) {
    const int64_t sq = p.cu_seqlens_q_stride;
    const int64_t skv = p.cu_seqlens_kv_stride;
    s.q_start = clamped(p.cu_seqlens_q[b * sq], 0, p.total_q);
    if (b == p.batch) {
      s.q_len = p.total_q - s.q_start;
      return s;
    }
    s.q_len = clamped(p.cu_seqlens_q[(b + 1) * sq], s.q_start, p.total_q) - s.q_start;
    s.kv_start = clamped(p.cu_seqlens_kv[b * skv], 0, p.total_kv);
    s.kv_used = clamped(p.cu_seqlens_kv[(b + 1) * skv], s.kv_start, p.total_kv) - s.kv_start;
  } else {
    s.q_len = p.q_len;
    s.kv_used = p.kv_len;
  }
  // No longer than the longest sequence: bias and masks have room for no more.
  s.kv_used = clamped(s.kv_used, 0, p.kv_len);
  s.q_used = clamped(s.q_len, 0, p.q_len);
  if (p.seqused_q != nullptr) {
    s.q_used = clamped(p.seqused_q[b * p.seqused_q_stride], 0, s.q_used);
  }
  if (p.seqused_kv != nullptr) {
    s.kv_used = clamped(p.seqused_kv[b * p.seqused_kv_stride], 0, s.kv_used);
  }
  if (p.diagonal_offset != nullptr) {
    s.offset = p.diagonal_offset[b * p.diagonal_offset_stride];
  } else if (!p.top_left) {
    s.offset = s.kv_used - s.q_used;
  }
  if (p.prefix_len != nullptr) s.prefix_len = p.prefix_len[b * p.prefix_len_stride];
  return s;
}

struct WorkItem {
  int64_t sequence;
  int64_t head;
  int64_t tile;  // q tile within the sequence
  int64_t split;
};

// Items of one (sequence, head) are neighbours, so that its keys stay in cache; the last rows come
// first, because under a causal mask they see most keys.
RUNMAX_INLINE WorkItem work_item(const ForwardParams& p, int64_t item, int32_t num_splits) {
  WorkItem w{};
  w.split = item % num_splits;
  item /= num_splits;
  int64_t tiles = p.tiles_per_sequence;
  if (p.tile_start != nullptr) {
    // The last sequence whose first item is not past `item`.
    int64_t low = 0;
    int64_t high = p.batch;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      if (p.tile_start[middle] * p.q_heads <= item) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    w.sequence = low;
    tiles = p.tile_start[low + 1] - p.tile_start[low];
    item -= p.tile_start[low] * p.q_heads;
  } else {
    w.sequence = item / (tiles * p.q_heads);
    item %= tiles * p.q_heads;
  }
  w.head = item / tiles;
  w.tile = tiles - 1 - item % tiles;
  return w;
}

// The dropout of this execution; reads the seed and offset that are given by pointer.
RUNMAX_INLINE Dropout dropout_of(const ForwardParams& p) {
  Dropout d = p.dropout;
  if (p.seed_pointer != nullptr) d.seed = *p.seed_pointer;
  if (p.offset_pointer != nullptr) d.offset = *p.offset_pointer;
  return d;
}

RUNMAX_INLINE Visibility<int64_t> visibility_of(const ForwardParams& p, const Sequence& s) {
  return {s.kv_used, s.offset, p.window_left, p.window_right, p.sink_tokens, s.prefix_len};
}

// Element offset of row r (of sequence s) of a per-token operand.
RUNMAX_INLINE int64_t q_row_offset(const Operand& x, const Sequence& s, int64_t head, int64_t row) {
  return s.batch * x.batch + head * x.head + (s.q_start + row) * x.row;
}
RUNMAX_INLINE int64_t kv_row_offset(const Operand& x, const Sequence& s, int64_t head,
                                    int64_t row) {
  return s.batch * x.batch + head * x.head + (s.kv_start + row) * x.row;
}

RUNMAX_INLINE DataMask data_mask_of(const ForwardParams& p, const Sequence& s, int64_t head) {
  DataMask m{};
  if (p.segment_ids_q != nullptr && p.segment_ids_kv != nullptr) {  // NULL: no keys, or absent
    m.segment_q = p.segment_ids_q + s.batch * p.segment_q_batch + s.q_start * p.segment_q_stride;
    m.segment_kv =
        p.segment_ids_kv + s.batch * p.segment_kv_batch + s.kv_start * p.segment_kv_stride;
    m.segment_q_stride = p.segment_q_stride;
    m.segment_kv_stride = p.segment_kv_stride;
  }
  if (p.mask.present()) {
    m.mask =
        static_cast<const uint8_t*>(p.mask.pointer) + s.batch * p.mask.batch + head * p.mask.head;
    m.mask_q_stride = p.mask.row;
    m.mask_kv_stride = p.mask.column;
  }
  return m;
}

}  // namespace runmax::policy
