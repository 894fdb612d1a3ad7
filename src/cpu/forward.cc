#include <algorithm>
#include <cmath>

#include "core/tensor.h"
#include "cpu/forward_launch.h"
#include "cpu/sequence.h"

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

// Dimension i of a tensor that broadcasts where its size is 1.
int64_t broadcast_stride(const runmax_tensor& t, int i) {
  return t.shape[i] == 1 ? 0 : t.stride[i];
}

// A non-null stand-in for present tensors without elements, whose pointer may be null.
alignas(64) unsigned char no_elements[64];

Operand operand(const runmax_tensor& t, const void* pointer) {
  Operand x;
  if (!Problem::present(t)) return x;
  x.pointer = pointer != nullptr ? const_cast<void*>(pointer) : no_elements;
  x.dtype = t.dtype;
  return x;
}

// [batch, heads, rows, columns], or packed [rows, heads, columns].
Operand token_operand(const runmax_tensor& t, const void* pointer, bool packed) {
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
Operand row_operand(const runmax_tensor& t, const void* pointer, bool packed) {
  Operand x = operand(t, pointer);
  x.batch = packed ? 0 : t.stride[0];
  x.head = t.stride[packed ? 0 : 1];
  x.row = t.stride[packed ? 1 : 2];
  return x;
}

// [1|batch, 1|q_heads, 1|q_len, 1|kv_len]
Operand pair_operand(const runmax_tensor& t, const void* pointer) {
  Operand x = operand(t, pointer);
  x.batch = broadcast_stride(t, 0);
  x.head = broadcast_stride(t, 1);
  x.row = broadcast_stride(t, 2);
  x.column = broadcast_stride(t, 3);
  return x;
}

// [q_heads] or [batch, q_heads]
Operand head_operand(const runmax_tensor& t, const void* pointer) {
  Operand x = operand(t, pointer);
  x.batch = t.rank == 2 ? t.stride[0] : 0;
  x.head = t.stride[t.rank == 2 ? 1 : 0];
  return x;
}

void set_shape(const Problem& problem, ForwardParams& p) {
  p.packed = problem.packed;
  p.top_left = problem.raw.diagonal_alignment == RUNMAX_ALIGN_TOP_LEFT;
  p.keep_unused = problem.has(RUNMAX_KEEP_UNUSED);
  p.batch = problem.batch;
  p.q_heads = problem.q_heads;
  p.group_size = problem.group_size;
  p.q_len = problem.q_len;
  p.kv_len = problem.kv_len;
  p.total_q = problem.total_q;
  p.head_dim = problem.head_dim;
  p.head_dim_v = problem.head_dim_v;
  p.q.dtype = problem.raw.q.dtype;
  p.scale = problem.scale;
  p.softcap = problem.raw.softcap;
  p.window_left = policy::clamp_position<int64_t>(problem.window_left);
  p.window_right = policy::clamp_position<int64_t>(problem.window_right);
  p.sink_tokens = policy::clamp_position<int64_t>(problem.raw.sink_tokens);
}

void set_data(const Problem& problem, const runmax_args& args, ForwardParams& p) {
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
    p.dropout =
        policy::Dropout::make(raw.dropout, args.seed_pointer ? *args.seed_pointer : args.seed,
                              args.offset_pointer ? *args.offset_pointer : args.offset);
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

int64_t block_lists(const runmax_tensor& t) {
  int64_t lists = 1;
  for (int d = 0; d < t.rank - 1; ++d) lists *= t.shape[d];
  return lists;
}

void prepare_blocks(const Launch& launch, ForwardParams& p) {
  const runmax_tensor& t = launch.problem.raw.block_index;
  if (!Problem::present(t)) return;
  int32_t* entries = launch.ledger.take<int32_t>(launch.workspace, "block_entries");
  int32_t* counts = launch.ledger.take<int32_t>(launch.workspace, "block_counts");
  BlockPreparation preparation{t, launch.args.block_index, entries, counts};
  launch.device.parallel_for(block_lists(t), BlockPreparation::list, &preparation);

  const int64_t heads = t.shape[p.packed ? 0 : 1];
  const int64_t q_blocks = t.shape[p.packed ? 1 : 2];
  p.blocks.entries = entries;
  p.blocks.counts = counts;
  p.blocks.max_selected = t.shape[t.rank - 1];
  p.blocks.block_q = launch.problem.raw.block_q;
  p.blocks.block_kv = launch.problem.raw.block_kv;
  p.blocks.head_lists = q_blocks;
  p.blocks.batch_lists = heads * q_blocks;
  p.blocks.heads_per_list = heads > 0 ? p.q_heads / heads : 1;
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
  set_shape(problem, p);
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
    ledger.book("block_entries", Workspace::bytes({element_count(t) + 1, sizeof(int32_t)}));
    ledger.book("block_counts", Workspace::bytes({block_lists(t) + 1, sizeof(int32_t)}));
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
  set_shape(launch.problem, p);
  choose_tiles(launch.problem, p);
  set_data(launch.problem, launch.args, p);
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
