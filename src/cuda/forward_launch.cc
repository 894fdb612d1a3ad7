#include "cuda/forward_launch.h"

#include <algorithm>
#include <string>

#include "cuda/schedule.h"
#include "policy/bind.h"

namespace runmax::cuda {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// No split is shorter: merging has a price too.
constexpr int64_t kShortestSplit = 256;

int64_t partial_element(const Problem& problem) {
  return problem.raw.q.dtype == RUNMAX_F64 ? 8 : 4;
}

}  // namespace

Status status_of(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::ok();
  const std::string text =
      std::string(what) + ": failed on the GPU (" + cudaGetErrorString(error) + "), must succeed";
  return {error == cudaErrorMemoryAllocation ? RUNMAX_OUT_OF_MEMORY : RUNMAX_DEVICE_ERROR, what,
          text};
}

int64_t max_tiles(const Problem& problem, int32_t q_tile) {
  return problem.packed ? problem.total_q / q_tile + problem.batch + 1
                        : problem.batch * ceil_div(problem.q_len, q_tile);
}

Config configure_forward(const Problem& problem, const DeviceInfo&, Workspace& ledger, Tiles tiles,
                         int64_t blocks) {
  const int64_t items =
      static_cast<int64_t>(Workspace::bytes({max_tiles(problem, tiles.q), problem.q_heads}));
  int64_t wanted = problem.raw.num_splits;
  if (wanted == 0) {
    wanted = 1;
    if (!problem.has(RUNMAX_BATCH_INVARIANT) && items > 0 && items <= blocks / 2) {
      wanted = std::clamp<int64_t>(problem.kv_len / kShortestSplit, 1, blocks / items);
    }
  }
  const int64_t split_len =
      std::max<int64_t>(ceil_div(ceil_div(problem.kv_len, wanted), tiles.kv) * tiles.kv, tiles.kv);
  // Forced or not, no split is empty by its length.
  const int64_t splits = std::max<int64_t>(ceil_div(problem.kv_len, split_len), 1);

  Config config;
  config.q_tile = tiles.q;
  config.kv_tile = tiles.kv;
  config.num_splits = static_cast<int32_t>(splits);
  config.split_len = splits > 1 ? split_len : 0;
  config.fast_level = "shared";
  if (problem.packed) {
    ledger.book("tile_start", static_cast<size_t>(problem.batch + 2) * sizeof(int64_t));
  }
  if (const runmax_tensor& t = problem.raw.block_index; Problem::present(t)) {
    // One entry more than there are, so that the parts exist when no block is selected.
    const int64_t lists = policy::block_list_count(problem);
    const int64_t entries = lists * t.shape[t.rank - 1];
    ledger.book("block_entries", static_cast<size_t>(entries + 1) * sizeof(int32_t));
    ledger.book("block_counts", static_cast<size_t>(lists + 1) * sizeof(int32_t));
    if (problem.packed) {
      ledger.book("block_start", static_cast<size_t>(problem.batch + 1) * sizeof(int64_t));
    }
  }
  if (splits > 1) {
    const int64_t element = partial_element(problem);
    const int64_t columns = ceil_div(problem.head_dim_v, 64 / element) * (64 / element);
    ledger.book("partial", Workspace::bytes({splits, problem.q_heads, problem.total_q,
                                             columns + kPartialExtra, element}));
  }
  return config;
}

Status begin_forward(const Launch& launch, ForwardParams& p) {
  policy::bind_shape(launch.problem, p);
  policy::bind_data(launch.problem, launch.args, p);
  p.q_tile = launch.config.q_tile;
  p.kv_tile = launch.config.kv_tile;
  p.num_splits = launch.config.num_splits;
  p.split_len = launch.config.split_len;
  p.partial = launch.ledger.take(launch.workspace, "partial");
  if (Problem::present(launch.problem.raw.block_index)) {
    int32_t* entries = launch.ledger.take<int32_t>(launch.workspace, "block_entries");
    int32_t* counts = launch.ledger.take<int32_t>(launch.workspace, "block_counts");
    int64_t* start = launch.ledger.take<int64_t>(launch.workspace, "block_start");
    RUNMAX_RETURN_IF_ERROR(
        status_of(list_blocks(p, launch.problem.raw.block_index, launch.args.block_index, entries,
                              counts, start, stream_of(launch)),
                  "forward"));
    p.blocks.entries = entries;
    p.blocks.counts = counts;
    p.blocks.start = start;
  }
  if (!p.packed) {
    p.tiles_per_sequence = ceil_div(p.q_len, p.q_tile);
    return Status::ok();
  }
  int64_t* tile_start = launch.ledger.take<int64_t>(launch.workspace, "tile_start");
  p.tile_start = tile_start;
  return status_of(list_tiles(p, tile_start, stream_of(launch)), "forward");
}

Status end_forward(const Launch& launch, const ForwardParams& p) {
  RUNMAX_RETURN_IF_ERROR(status_of(cudaGetLastError(), "forward"));
  if (p.num_splits == 1) return Status::ok();
  const int64_t items = max_tiles(launch.problem, p.q_tile) * p.q_heads;
  return status_of(merge_splits(p, items, stream_of(launch)), "forward");
}

}  // namespace runmax::cuda
