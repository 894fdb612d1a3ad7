// What a plan will do, counted: pairs, operations, bytes. The visibility rule comes from
// src/policy, so that counts and kernels cannot drift apart.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/dtype.h"
#include "core/tensor.h"
#include "plan/plan.h"
#include "policy/mask.h"

namespace runmax {

namespace {

using Visibility = policy::Visibility<int64_t>;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Counts that no machine reaches stop at the largest number instead of wrapping round.
uint64_t plus(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}
uint64_t times(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

struct Lengths {
  int64_t q_start, kv_start;  // packed storage
  int64_t q_len, kv_len;      // storage
  int64_t q_used, kv_used;
};

struct Counter {
  const Plan& plan;
  const runmax_args* args;

  const Problem& problem() const { return plan.problem; }
  const runmax_problem& raw() const { return plan.problem.raw; }

  // Value of a [batch] tensor, or `otherwise` when it is absent or unknown.
  int64_t value(const runmax_tensor& t, const int32_t* pointer, int64_t b,
                int64_t otherwise) const {
    if (args == nullptr || !Problem::present(t)) return otherwise;
    return pointer[b * t.stride[0]];
  }

  Lengths lengths(int64_t b) const {
    Lengths n{};
    if (!problem().packed) {
      n.q_len = problem().q_len;
      n.kv_len = problem().kv_len;
    } else if (args != nullptr) {
      const int64_t sq = raw().cu_seqlens_q.stride[0];
      const int64_t skv = raw().cu_seqlens_kv.stride[0];
      n.q_start = args->cu_seqlens_q[b * sq];
      n.kv_start = args->cu_seqlens_kv[b * skv];
      n.q_len = args->cu_seqlens_q[(b + 1) * sq] - n.q_start;
      n.kv_len = args->cu_seqlens_kv[(b + 1) * skv] - n.kv_start;
    } else {  // equal shares
      const int64_t batch = problem().batch;
      n.q_len = problem().total_q / batch + (b < problem().total_q % batch);
      n.kv_len = problem().total_kv / batch + (b < problem().total_kv % batch);
    }
    n.q_used = value(raw().seqused_q, args ? args->seqused_q : nullptr, b, n.q_len);
    n.kv_used = value(raw().seqused_kv, args ? args->seqused_kv : nullptr, b, n.kv_len);
    return n;
  }

  Visibility visibility(int64_t b, const Lengths& n) const {
    Visibility v{};
    v.kv_len = n.kv_used;
    const bool top_left = raw().diagonal_alignment == RUNMAX_ALIGN_TOP_LEFT;
    v.offset = value(raw().diagonal_offset, args ? args->diagonal_offset : nullptr, b,
                     top_left ? 0 : n.kv_used - n.q_used);
    v.window_left = policy::clamp_position<int64_t>(problem().window_left);
    v.window_right = policy::clamp_position<int64_t>(problem().window_right);
    v.sink_tokens = policy::clamp_position<int64_t>(raw().sink_tokens);
    v.prefix_len = value(raw().prefix_len, args ? args->prefix_len : nullptr, b, 0);
    return v;
  }

  // Pairs (row, key) of one sequence and head that pass visibility and every mask that is data.
  uint64_t visible_by_data(int64_t b, int64_t head, const Lengths& n, const Visibility& v) const {
    uint64_t pairs = 0;
    std::vector<bool> blocks;
    for (int64_t q = 0; q < n.q_used; ++q) {
      if (selects_blocks() && q % raw().block_q == 0) {
        blocks = selected_blocks(b, head, q / raw().block_q, ceil_div(n.kv_len, raw().block_kv));
      }
      const int64_t end = v.hi(q);
      for (int64_t kv = 0; kv < end; ++kv) {
        if (selects_blocks() && !blocks[static_cast<size_t>(kv / raw().block_kv)]) continue;
        pairs += v.keep(q, kv) && segments_agree(b, n, q, kv) && mask_keeps(b, head, q, kv) &&
                 bias_keeps(b, head, q, kv);
      }
    }
    return pairs;
  }

  bool segments_agree(int64_t b, const Lengths& n, int64_t q, int64_t kv) const {
    const runmax_tensor& tq = raw().segment_ids_q;
    const runmax_tensor& tkv = raw().segment_ids_kv;
    if (!Problem::present(tq)) return true;
    const int64_t at_q =
        problem().packed ? (n.q_start + q) * tq.stride[0] : b * tq.stride[0] + q * tq.stride[1];
    const int64_t at_kv = problem().packed ? (n.kv_start + kv) * tkv.stride[0]
                                           : b * tkv.stride[0] + kv * tkv.stride[1];
    return args->segment_ids_q[at_q] == args->segment_ids_kv[at_kv];
  }

  static int64_t pair_offset(const runmax_tensor& t, int64_t b, int64_t head, int64_t q,
                             int64_t kv) {
    const int64_t index[4] = {b, head, q, kv};
    int64_t offset = 0;
    for (int i = 0; i < 4; ++i) offset += t.shape[i] == 1 ? 0 : index[i] * t.stride[i];
    return offset;
  }

  bool mask_keeps(int64_t b, int64_t head, int64_t q, int64_t kv) const {
    if (!Problem::present(raw().mask)) return true;
    return static_cast<const uint8_t*>(args->mask)[pair_offset(raw().mask, b, head, q, kv)] != 0;
  }

  bool bias_keeps(int64_t b, int64_t head, int64_t q, int64_t kv) const {
    const runmax_tensor& t = raw().bias;
    if (!Problem::present(t)) return true;
    const int64_t at = pair_offset(t, b, head, q, kv);
    switch (t.dtype) {
      case RUNMAX_F64:
        return static_cast<const double*>(args->bias)[at] != -__builtin_inf();
      case RUNMAX_BF16:
        return static_cast<const Bf16*>(args->bias)[at].bits != 0xff80;
      case RUNMAX_F16:
        return static_cast<const F16*>(args->bias)[at].bits != 0xfc00;
      default:
        return static_cast<const float*>(args->bias)[at] != -__builtin_inff();
    }
  }

  // Key blocks that block `q_block` of rows selected, as a set over all of them.
  std::vector<bool> selected_blocks(int64_t b, int64_t head, int64_t q_block,
                                    int64_t kv_blocks) const {
    const runmax_tensor& t = raw().block_index;
    std::vector<bool> selected(static_cast<size_t>(kv_blocks));
    const int64_t heads = t.shape[problem().packed ? 0 : 1];
    const int64_t list_head = head * heads / problem().q_heads;
    int64_t at = 0;
    if (problem().packed) {
      int64_t first = 0;
      for (int64_t i = 0; i < b; ++i) first += ceil_div(lengths(i).q_len, raw().block_q);
      at = list_head * t.stride[0] + (first + q_block) * t.stride[1];
    } else {
      at = b * t.stride[0] + list_head * t.stride[1] + q_block * t.stride[2];
    }
    for (int64_t i = 0; i < t.shape[t.rank - 1]; ++i) {
      const int32_t block = args->block_index[at + i * t.stride[t.rank - 1]];
      if (block >= 0 && block < kv_blocks) selected[static_cast<size_t>(block)] = true;
    }
    return selected;
  }

  bool selects_blocks() const { return args != nullptr && Problem::present(raw().block_index); }

  bool masks_are_data() const {
    return args != nullptr &&
           (Problem::present(raw().block_index) || Problem::present(raw().mask) ||
            Problem::present(raw().bias) || Problem::present(raw().segment_ids_q));
  }
  // Do masks differ between heads?
  bool heads_differ() const {
    const auto by_head = [](const runmax_tensor& t) {
      return Problem::present(t) && t.shape[1] != 1;
    };
    const runmax_tensor& blocks = raw().block_index;
    return by_head(raw().mask) || by_head(raw().bias) ||
           (selects_blocks() && blocks.shape[problem().packed ? 0 : 1] != 1);
  }
};

struct Counts {
  uint64_t visible = 0;   // pairs, over all heads
  uint64_t all = 0;       // pairs of storage
  uint64_t executed = 0;  // pairs of the tiles that are visited
  uint64_t kv_rows = 0;   // key rows loaded, once per q tile that visits them
};

// Keys that rows [0, rows) see, summed. Per row the number is linear but where one of the window's
// ends passes a fixed bound: between those rows it is an arithmetic series.
uint64_t sum_visible_keys(const Visibility& v, int64_t rows) {
  std::vector<int64_t> edges = {0, rows};
  for (const int64_t diagonal : {v.offset - v.window_left, v.offset + v.window_right + 1}) {
    for (const int64_t bound : {int64_t{0}, v.sink_tokens, v.prefix_len, v.kv_len}) {
      edges.push_back(std::clamp<int64_t>(bound - diagonal, 0, rows));
    }
  }
  std::sort(edges.begin(), edges.end());
  uint64_t sum = 0;
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    if (edges[i] == edges[i + 1]) continue;
    const int64_t ends = v.visible_keys(edges[i]) + v.visible_keys(edges[i + 1] - 1);
    sum += static_cast<uint64_t>(edges[i + 1] - edges[i]) * static_cast<uint64_t>(ends) / 2;
  }
  return sum;
}

// Tiles that the kernel visits for one head: those of the visibility rule and, with block
// selection, of the blocks that some row of the tile selected.
void count_tiles(const Counter& counter, int64_t b, int64_t head, const Lengths& n,
                 const Visibility& v, Counts& counts) {
  const int64_t q_tile = std::max(counter.plan.config.q_tile, 1);
  const int64_t kv_tile = std::max(counter.plan.config.kv_tile, 1);
  const int64_t block_q = counter.raw().block_q;
  const int64_t block_kv = counter.raw().block_kv;
  for (int64_t begin = 0; begin < n.q_used; begin += q_tile) {
    const int64_t end = std::min(begin + q_tile, n.q_used);
    std::vector<bool> selected;
    if (counter.selects_blocks()) {
      selected.resize(static_cast<size_t>(ceil_div(n.kv_len, block_kv)));
      for (int64_t block = begin / block_q; block <= (end - 1) / block_q; ++block) {
        const std::vector<bool> one =
            counter.selected_blocks(b, head, block, static_cast<int64_t>(selected.size()));
        for (size_t i = 0; i < one.size(); ++i) selected[i] = selected[i] || one[i];
      }
    }
    const auto skipped = [&](int64_t tile) {
      const int64_t key = tile * kv_tile;
      if (v.classify(begin, end, key, key + kv_tile) == policy::TileClass::skip) return true;
      if (!counter.selects_blocks()) return false;
      const int64_t key_end = std::min(key + kv_tile, v.kv_len);
      const auto from = selected.begin() + key / block_kv;
      const auto to = selected.begin() + ceil_div(key_end, block_kv);
      return std::find(from, to, true) == to;
    };
    const auto visit = [&](int64_t first, int64_t last) {
      if (first >= last) return;
      counts.executed += static_cast<uint64_t>((end - begin) * (last - first) * kv_tile);
      counts.kv_rows += static_cast<uint64_t>(std::min(last * kv_tile, v.kv_len) - first * kv_tile);
    };
    // The rows' windows join up, so that without block selection only the ends of a range can hold
    // tiles that nobody sees.
    const auto visit_range = [&](int64_t first, int64_t last) {
      if (counter.selects_blocks()) {
        for (int64_t tile = first; tile < last; ++tile)
          visit(tile, skipped(tile) ? tile : tile + 1);
        return;
      }
      while (first < last && skipped(first)) ++first;
      while (first < last && skipped(last - 1)) --last;
      visit(first, last);
    };
    const policy::TileRange<int64_t> range = v.tiles(begin, end, kv_tile);
    visit_range(0, range.leading_end);
    visit_range(range.begin, range.end);
  }
}

// One sequence and head.
Counts count_head(const Counter& counter, int64_t b, int64_t head) {
  const Lengths n = counter.lengths(b);
  const Visibility v = counter.visibility(b, n);
  Counts counts;
  counts.all = static_cast<uint64_t>(n.q_len) * static_cast<uint64_t>(n.kv_len);
  count_tiles(counter, b, head, n, v, counts);
  if (counter.masks_are_data()) {
    counts.visible = counter.visible_by_data(b, head, n, v);
  } else {
    counts.visible = sum_visible_keys(v, n.q_used);
  }
  return counts;
}

Counts count_forward(const Counter& counter) {
  const Problem& problem = counter.problem();
  // Heads whose masks agree are counted once.
  const int64_t distinct =
      counter.heads_differ() ? problem.q_heads : std::min<int64_t>(problem.q_heads, 1);
  // So are entries of a dense batch, which only data tell apart.
  const bool alike = counter.args == nullptr && !problem.packed;
  const int64_t entries = alike ? std::min<int64_t>(problem.batch, 1) : problem.batch;
  if (distinct == 0 || entries == 0) return {};
  const uint64_t copies = static_cast<uint64_t>(problem.q_heads / distinct) *
                          static_cast<uint64_t>(problem.batch / entries);
  Counts total;
  for (int64_t b = 0; b < entries; ++b) {
    for (int64_t head = 0; head < distinct; ++head) {
      const Counts one = count_head(counter, b, head);
      total.visible = plus(total.visible, times(copies, one.visible));
      total.all = plus(total.all, times(copies, one.all));
      total.executed = plus(total.executed, times(copies, one.executed));
      total.kv_rows = plus(total.kv_rows, times(copies, one.kv_rows));
    }
  }
  return total;
}

uint64_t tensor_bytes(const runmax_tensor& t) {
  return times(static_cast<uint64_t>(element_count(t)), static_cast<uint64_t>(dtype_size(t.dtype)));
}

}  // namespace

void count_work(const Plan& plan, const runmax_args* args, runmax_plan_info& info) {
  const Problem& problem = plan.problem;
  const runmax_problem& raw = problem.raw;
  info.from_data = args != nullptr;
  info.q_tile = plan.config.q_tile;
  info.kv_tile = plan.config.kv_tile;
  info.num_splits = plan.config.num_splits;
  info.threads = plan.device->info().max_threads;
  info.extra_memory_tiled = plan.ledger.size();
  info.fast_tile_bytes = static_cast<uint64_t>(plan.config.fast_tile_bytes);
  // l1_bytes of a GPU are its shared memory.
  const bool l2 = std::strcmp(plan.config.fast_level, "L2") == 0;
  info.fast_level_bytes = !l2 ? plan.device->info().l1_bytes : plan.device->info().l2_bytes;
  std::strncpy(info.fast_level, plan.config.fast_level, sizeof info.fast_level - 1);
  std::strncpy(info.kernel, plan.kernel->name, sizeof info.kernel - 1);
  if (raw.op == RUNMAX_MERGE) return;

  const Counts counts = count_forward({plan, args});
  const uint64_t dims = static_cast<uint64_t>(problem.head_dim + problem.head_dim_v);
  const uint64_t element = static_cast<uint64_t>(dtype_size(raw.q.dtype));
  const uint64_t matrix = times(counts.all, element);
  const uint64_t keys = plus(tensor_bytes(raw.k), tensor_bytes(raw.v));
  const uint64_t inputs = plus(tensor_bytes(raw.q), keys);
  const uint64_t ends =
      plus(plus(tensor_bytes(raw.q), tensor_bytes(raw.out)), tensor_bytes(raw.lse));
  const uint64_t lse = times(static_cast<uint64_t>(problem.q_heads * problem.total_q),
                             raw.q.dtype == RUNMAX_F64 ? 8 : 4);
  info.visible_pairs = counts.visible;
  info.saved_tiled = plus(plus(inputs, tensor_bytes(raw.out)), lse);
  info.saved_plain = plus(inputs, matrix);
  info.extra_memory_plain = matrix;
  if (raw.op == RUNMAX_BACKWARD) {
    // Five products, of which the plain way keeps one (the scores) from forward; tiled does them
    // all.
    const uint64_t five = 2 * static_cast<uint64_t>(3 * problem.head_dim + 2 * problem.head_dim_v);
    info.required_operations = times(counts.visible, five);
    info.executed_tiled = times(counts.executed, five);
    info.executed_plain = times(counts.all, five - 2 * static_cast<uint64_t>(problem.head_dim));
    // Tiled: each tile of keys reads q and d_out of the rows that see it. Plain: the probabilities
    // are read twice, their gradients written and read, those of the scores written and read twice.
    const uint64_t rows = counts.executed / static_cast<uint64_t>(std::max(info.kv_tile, 1));
    info.slow_bytes_tiled = plus(times(inputs, 2), times(rows, dims * element));
    info.slow_bytes_plain = plus(times(inputs, 2), times(matrix, 7));
    return;
  }
  info.required_operations = times(counts.visible, 2 * dims);
  info.executed_tiled = times(counts.executed, 2 * dims);
  info.executed_plain = times(counts.all, 2 * dims);
  info.slow_bytes_tiled = plus(ends, times(counts.kv_rows, dims * element));
  info.slow_bytes_plain = plus(plus(ends, keys), times(matrix, 4));
}

}  // namespace runmax
