#include <algorithm>
#include <cmath>

#include "core/tensor.h"
#include "cpu/forward_launch.h"
#include "policy/bind.h"

namespace runmax::cpu {

namespace {

// Keys whose reduction is one unit: results of chunks are merged in order of keys.
constexpr int64_t kChunk = 4096;
// With fewer work items than this the keys are split too. A constant: a plan must not depend on the
// number of threads, or results would.
constexpr int64_t kEnoughItems = 64;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The largest divisor of `block` in [low, high], or `high` if there is none.
int32_t divisor_within(int64_t block, int32_t low, int32_t high) {
  for (int32_t tile = high; tile >= low; --tile) {
    if (block % tile == 0) return tile;
  }
  return high;
}

// Tiles small enough that Q, K, V, S and O of one thread fit in a megabyte of L2. With block
// selection their edges lie on block edges where blocks are large enough, so that what is executed
// is what was selected.
void choose_tiles(const Problem& problem, ForwardParams& p) {
  const int64_t widest = std::max(problem.head_dim, problem.head_dim_v);
  p.q_tile = widest <= 128 ? 96 : (widest <= 512 ? 48 : 12);
  p.kv_tile = widest <= 128 ? 128 : (widest <= 512 ? 64 : 32);
  p.chunk = kChunk;
  if (Problem::present(problem.raw.block_index)) {
    p.q_tile = divisor_within(problem.raw.block_q, p.q_tile / 3, p.q_tile);
    while (p.kv_tile > 32 && problem.raw.block_kv % p.kv_tile != 0) p.kv_tile /= 2;
  }
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

struct Tasks {
  const ForwardParams& params;
  const ForwardKernel& kernel;
  std::byte* scratch;
  size_t scratch_bytes;

  static void item(void* self, int64_t index, int32_t slot) {
    const Tasks& t = *static_cast<const Tasks*>(self);
    t.kernel.item(t.params, index, t.scratch + static_cast<size_t>(slot) * t.scratch_bytes);
  }
  static void merge_item(void* self, int64_t index, int32_t slot) {
    const Tasks& t = *static_cast<const Tasks*>(self);
    t.kernel.merge_item(t.params, index, t.scratch + static_cast<size_t>(slot) * t.scratch_bytes);
  }
};

}  // namespace

const char* forward_supports(const Problem&, const DeviceInfo&) { return nullptr; }

Config forward_configure(const Problem& problem, const DeviceInfo& device, Workspace& ledger,
                         const ForwardKernel& kernel) {
  ForwardParams p;
  policy::bind_shape(problem, p);
  choose_tiles(problem, p);

  const int64_t heads = problem.q_heads;
  // Packed: every sequence may end in a tile of its own.
  const int64_t tiles = problem.packed
                            ? problem.total_q / p.q_tile + problem.batch + 1
                            : problem.batch * round_up(problem.q_len, p.q_tile) / p.q_tile;
  int64_t split_len = kChunk;  // each chunk a split: the same bits as without
  if (const int64_t forced = problem.raw.num_splits; forced > 0) {
    split_len =
        std::max<int64_t>(round_up((problem.kv_len + forced - 1) / forced, p.kv_tile), p.kv_tile);
  } else if (tiles * heads >= kEnoughItems) {
    split_len = std::max<int64_t>(problem.kv_len, 1);
  }
  // Forced or not, no split is empty by its length.
  const int64_t splits = std::max<int64_t>((problem.kv_len + split_len - 1) / split_len, 1);

  Config config;
  config.q_tile = p.q_tile;
  config.kv_tile = p.kv_tile;
  config.num_splits = static_cast<int32_t>(splits);
  config.split_len = splits > 1 ? split_len : 0;
  config.fast_tile_bytes = static_cast<int64_t>(kernel.scratch_bytes(p));
  config.fast_level = "L2";

  const size_t slots = static_cast<size_t>(device.max_threads);
  ledger.book("scratch", slots * kernel.scratch_bytes(p));
  if (problem.packed) {
    ledger.book("tile_start", static_cast<size_t>(problem.batch + 2) * sizeof(int64_t));
  }
  if (const runmax_tensor& t = problem.raw.block_index; Problem::present(t)) {
    // One entry more than there are, so that the parts exist when no block is selected.
    ledger.book("block_entries", static_cast<size_t>(element_count(t) + 1) * sizeof(int32_t));
    ledger.book("block_counts",
                static_cast<size_t>(policy::block_list_count(problem) + 1) * sizeof(int32_t));
    if (problem.packed) {
      ledger.book("block_start", static_cast<size_t>(problem.batch + 1) * sizeof(int64_t));
    }
  }
  if (splits > 1) {
    const int64_t element = problem.raw.q.dtype == RUNMAX_F64 ? 8 : 4;
    const int64_t row = round_up(problem.head_dim_v, 64 / element) + kPartialExtra;
    ledger.book("partial", Workspace::bytes({splits, heads, problem.total_q, row, element}));
  }
  return config;
}

double forward_cost(const Problem& problem, const DeviceInfo& device, double flops_per_second) {
  const double pairs = static_cast<double>(problem.total_q) * static_cast<double>(problem.kv_len) *
                       static_cast<double>(problem.q_heads);
  const double operations = 2 * pairs * static_cast<double>(problem.head_dim + problem.head_dim_v);
  return operations / (flops_per_second * device.max_threads);
}

Status forward_launch(const Launch& launch, const ForwardKernel& kernel) {
  ForwardParams p;
  policy::bind_shape(launch.problem, p);
  choose_tiles(launch.problem, p);
  policy::bind_data(launch.problem, launch.args, p);
  p.dropout = policy::dropout_of(p);
  p.num_splits = launch.config.num_splits;
  p.split_len = launch.config.split_len;
  p.partial = launch.ledger.take(launch.workspace, "partial");
  prepare_blocks(launch, p);
  int64_t tiles = 0;
  if (p.packed) {
    int64_t* tile_start = launch.ledger.take<int64_t>(launch.workspace, "tile_start");
    tiles = list_tiles(p, tile_start);
    p.tile_start = tile_start;
  } else {
    p.tiles_per_sequence = (p.q_len + p.q_tile - 1) / p.q_tile;
    tiles = p.batch * p.tiles_per_sequence;
  }

  Tasks tasks{p, kernel, launch.ledger.take(launch.workspace, "scratch"), kernel.scratch_bytes(p)};
  const int64_t items = tiles * p.q_heads;
  launch.device.parallel_for(items * p.num_splits, Tasks::item, &tasks);
  if (p.num_splits > 1) launch.device.parallel_for(items, Tasks::merge_item, &tasks);
  return Status::ok();
}

}  // namespace runmax::cpu
