// The parameters of every forward kernel on the GPU: the same plain data that the CPU kernels read,
// passed by value as one __grid_constant__ kernel argument.
//
//   work item = (sequence, query head, q tile [, kv split]); policy::work_item() decodes its number
//   items     = policy::... tile_start[batch + 1] (packed, read on the device) or
//               batch * tiles_per_sequence (dense), times q_heads, times num_splits
//
// A grid is one-dimensional and strides over the items, so that no count is too large for it.
#pragma once

#include "policy/forward_params.h"
#include "policy/sequence.h"

namespace runmax::cuda {

using policy::ForwardParams;
using policy::kPartialExtra;
using policy::Operand;
using policy::Sequence;
using policy::WorkItem;

// Work items of the grid, (sequence, head, tile, split) each.
RUNMAX_INLINE int64_t item_count(const ForwardParams& p) {
  const int64_t tiles =
      p.tile_start != nullptr ? p.tile_start[p.batch + 1] : p.batch * p.tiles_per_sequence;
  return tiles * p.q_heads * p.num_splits;
}

// Columns of a partial state's acc, in elements: whole lines.
template <class T>
RUNMAX_INLINE constexpr int64_t partial_columns(int64_t head_dim_v) {
  constexpr int64_t kMultiple = 64 / static_cast<int64_t>(sizeof(T));
  return (head_dim_v + kMultiple - 1) / kMultiple * kMultiple;
}

// The partial state of one row in the workspace, T = float (double for F64):
//   acc [partial_columns]: sum of exp(s - max) v;  then max (natural units), sum of exp(s - max),
//   seen (1 if some key is visible, else 0, and nothing else of the row is read)
template <class T>
RUNMAX_INLINE T* partial_row(const ForwardParams& p, const Sequence& s, int64_t head, int64_t row,
                             int64_t split) {
  const int64_t rows = p.packed ? p.total_q : p.batch * p.q_len;
  const int64_t token = p.packed ? s.q_start + row : s.batch * p.q_len + row;
  return static_cast<T*>(p.partial) + ((split * p.q_heads + head) * rows + token) *
                                          (partial_columns<T>(p.head_dim_v) + kPartialExtra);
}

}  // namespace runmax::cuda
