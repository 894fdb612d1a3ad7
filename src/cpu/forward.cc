#include <algorithm>
#include <cmath>

#include "core/tensor.h"
#include "cpu/forward_launch.h"
#include "cpu/work_list.h"
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

// Tiles small enough that Q, K, V, S and O of one thread fit in a megabyte of L2.
void choose_tiles(const Problem& problem, ForwardParams& p) {
  const int64_t widest = std::max(problem.head_dim, problem.head_dim_v);
  p.q_tile = widest <= 128 ? 96 : (widest <= 512 ? 48 : 12);
  p.kv_tile = widest <= 128 ? 128 : (widest <= 512 ? 64 : 32);
  p.chunk = kChunk;
  fit_tiles_to_blocks(problem, p);
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
  const int64_t tiles = most_q_tiles(problem, p.q_tile);
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
  book_work(problem, ledger);
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
  const int64_t tiles = prepare_work(launch, p);

  Tasks tasks{p, kernel, launch.ledger.take(launch.workspace, "scratch"), kernel.scratch_bytes(p)};
  const int64_t items = tiles * p.q_heads;
  launch.device.parallel_for(items * p.num_splits, Tasks::item, &tasks);
  if (p.num_splits > 1) launch.device.parallel_for(items, Tasks::merge_item, &tasks);
  return Status::ok();
}

}  // namespace runmax::cpu
