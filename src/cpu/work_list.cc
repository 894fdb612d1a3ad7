#include "cpu/work_list.h"

#include <algorithm>

#include "core/tensor.h"
#include "policy/bind.h"

namespace runmax::cpu {

namespace {

// The largest divisor of `block` in [low, high], or `high` if there is none.
int32_t divisor_within(int64_t block, int32_t low, int32_t high) {
  for (int32_t tile = high; tile >= low; --tile) {
    if (block % tile == 0) return tile;
  }
  return high;
}

// Sorts each list of block_index into the workspace and drops negative entries and duplicates.
struct BlockPreparation {
  const runmax_tensor& tensor;
  const int32_t* index;
  int32_t* entries;
  int32_t* counts;

  static void list(void* self, int64_t list, int32_t) {
    const BlockPreparation& t = *static_cast<const BlockPreparation*>(self);
    const int last = t.tensor.rank - 1;
    const int64_t max_selected = t.tensor.shape[last];
    int64_t offset = 0;
    int64_t rest = list;
    for (int d = last - 1; d >= 0; --d) {
      offset += rest % t.tensor.shape[d] * t.tensor.stride[d];
      rest /= t.tensor.shape[d];
    }
    int32_t* begin = t.entries + list * max_selected;
    int32_t* end = begin;
    for (int64_t i = 0; i < max_selected; ++i) {
      const int32_t block = t.index[offset + i * t.tensor.stride[last]];
      if (block >= 0) *end++ = block;
    }
    std::sort(begin, end);
    t.counts[list] = static_cast<int32_t>(std::unique(begin, end) - begin);
  }
};

void prepare_blocks(const Launch& launch, ForwardParams& p) {
  const runmax_tensor& t = launch.problem.raw.block_index;
  if (!Problem::present(t)) return;
  int32_t* entries = launch.ledger.take<int32_t>(launch.workspace, "block_entries");
  int32_t* counts = launch.ledger.take<int32_t>(launch.workspace, "block_counts");
  BlockPreparation preparation{t, launch.args.block_index, entries, counts};
  launch.device.parallel_for(policy::block_list_count(launch.problem), BlockPreparation::list,
                             &preparation);

  p.blocks.entries = entries;
  p.blocks.counts = counts;
  if (p.packed) {
    int64_t* start = launch.ledger.take<int64_t>(launch.workspace, "block_start");
    int64_t total = 0;
    for (int64_t b = 0; b < p.batch; ++b) {
      start[b] = total;
      total += (sequence_of(p, b).q_len + p.blocks.block_q - 1) / p.blocks.block_q;
    }
    p.blocks.start = start;
  }
}

// q tiles of every sequence, and of the storage after the last one.
int64_t list_tiles(const ForwardParams& p, int64_t* tile_start) {
  int64_t total = 0;
  for (int64_t b = 0; b <= p.batch; ++b) {
    tile_start[b] = total;
    total += (sequence_of(p, b).q_len + p.q_tile - 1) / p.q_tile;
  }
  tile_start[p.batch + 1] = total;
  return total;
}

}  // namespace

void fit_tiles_to_blocks(const Problem& problem, ForwardParams& p) {
  if (!Problem::present(problem.raw.block_index)) return;
  p.q_tile = divisor_within(problem.raw.block_q, p.q_tile / 3, p.q_tile);
  while (p.kv_tile > 32 && problem.raw.block_kv % p.kv_tile != 0) p.kv_tile /= 2;
}

int64_t most_q_tiles(const Problem& problem, int64_t q_tile) {
  // Packed: every sequence, and the storage after the last, may end in a tile of its own.
  return problem.packed ? problem.total_q / q_tile + problem.batch + 1
                        : problem.batch * ((problem.q_len + q_tile - 1) / q_tile);
}

void book_work(const Problem& problem, Workspace& ledger) {
  if (problem.packed) {
    ledger.book("tile_start", static_cast<size_t>(problem.batch + 2) * sizeof(int64_t));
  }
  if (const runmax_tensor& t = problem.raw.block_index; Problem::present(t)) {
    // One entry more than there are, so that the parts exist when no block is selected.
    ledger.book("block_entries", Workspace::bytes({element_count(t) + 1, sizeof(int32_t)}));
    ledger.book("block_counts",
                Workspace::bytes({policy::block_list_count(problem) + 1, sizeof(int32_t)}));
    if (problem.packed) {
      ledger.book("block_start", static_cast<size_t>(problem.batch + 1) * sizeof(int64_t));
    }
  }
}

int64_t prepare_work(const Launch& launch, ForwardParams& p) {
  prepare_blocks(launch, p);
  if (!p.packed) {
    p.tiles_per_sequence = (p.q_len + p.q_tile - 1) / p.q_tile;
    return p.batch * p.tiles_per_sequence;
  }
  int64_t* tile_start = launch.ledger.take<int64_t>(launch.workspace, "tile_start");
  p.tile_start = tile_start;
  return list_tiles(p, tile_start);
}

}  // namespace runmax::cpu
