#include <algorithm>

#include "core/tensor.h"
#include "cpu/backward_launch.h"
#include "cpu/work_list.h"
#include "policy/bind.h"

namespace runmax::cpu {

namespace {

// Work items are cut until there are about so many; a constant, so that results do not depend on
// threads.
constexpr int64_t kEnoughItems = 64;
// A chunk of keys is worth a partial d_q from here on.
constexpr int64_t kLeastChunk = 1024;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void set_shape(const Problem& problem, BackwardParams& b) {
  ForwardParams& p = b.forward;
  policy::bind_shape(problem, p);
  const int64_t widest = std::max(problem.head_dim, problem.head_dim_v);
  p.q_tile = widest <= 128 ? 64 : (widest <= 512 ? 32 : 16);
  p.kv_tile = widest <= 128 ? 128 : (widest <= 512 ? 64 : 32);
  p.dropout.active = problem.raw.dropout > 0;

  // One chunk when rows must not depend on the rest of the problem: the order of d_q's sum is then
  // the order of keys.
  const int64_t units = std::max<int64_t>(problem.batch * problem.kv_heads, 1);
  b.chunks = problem.has(RUNMAX_BATCH_INVARIANT)
                 ? 1
                 : std::clamp<int64_t>(ceil_div(kEnoughItems, units), 1,
                                       std::max<int64_t>(ceil_div(problem.kv_len, kLeastChunk), 1));
  b.chunk_len = std::max<int64_t>(
      ceil_div(ceil_div(problem.kv_len, b.chunks), p.kv_tile) * p.kv_tile, p.kv_tile);
  b.q_tiles = most_q_tiles(problem, p.q_tile);
  const runmax_tensor& d_bias = problem.raw.d_bias;
  if (Problem::present(d_bias)) {
    std::copy_n(d_bias.shape, 4, b.d_bias_shape);
    b.d_bias.pointer = policy::no_elements;  // present; the address comes at launch
  }
}

void set_data(const Launch& launch, BackwardParams& b) {
  const runmax_problem& raw = launch.problem.raw;
  const runmax_args& args = launch.args;
  const bool packed = launch.problem.packed;
  policy::bind_data(launch.problem, args, b.forward);
  b.forward.dropout = policy::dropout_of(b.forward);
  b.d_out = policy::token_operand(raw.d_out, args.d_out, packed);
  b.d_lse = policy::row_operand(raw.d_lse, args.d_lse, packed);
  b.d_q = policy::token_operand(raw.d_q, args.d_q, packed);
  b.d_k = policy::token_operand(raw.d_k, args.d_k, packed);
  b.d_v = policy::token_operand(raw.d_v, args.d_v, packed);
  b.d_bias = policy::pair_operand(raw.d_bias, args.d_bias);
  b.d_sink = policy::head_operand(raw.d_sink, args.d_sink);
  b.d_alibi_slopes = policy::head_operand(raw.d_alibi_slopes, args.d_alibi_slopes);
  const auto take = [&](const char* name) { return launch.ledger.take(launch.workspace, name); };
  b.row_term = take("row_term");
  b.d_q_partial = take("d_q_partial");
  b.alibi_partial = reinterpret_cast<double*>(take("alibi_partial"));
}

int64_t bias_items(const BackwardParams& b) {
  const int64_t* shape = b.d_bias_shape;
  const int64_t row_tiles = shape[2] == 1 ? 1 : ceil_div(shape[2], b.forward.q_tile);
  const int64_t kv_tiles = shape[3] == 1 ? 1 : ceil_div(shape[3], b.forward.kv_tile);
  return shape[0] * shape[1] * row_tiles * kv_tiles;
}

struct Tasks {
  const BackwardParams& params;
  void (*run)(const BackwardParams&, int64_t, std::byte*);
  std::byte* scratch;
  size_t scratch_bytes;

  static void item(void* self, int64_t index, int32_t slot) {
    const Tasks& t = *static_cast<const Tasks*>(self);
    t.run(t.params, index, t.scratch + static_cast<size_t>(slot) * t.scratch_bytes);
  }
};

// Keys of packed storage after the last sequence belong to none.
void clear_unused_keys(const Problem& problem, const BackwardParams& b) {
  const ForwardParams& p = b.forward;
  if (!p.packed || p.keep_unused) return;
  const int64_t first = p.cu_seqlens_kv[p.batch * p.cu_seqlens_kv_stride];
  const auto clear = [&](const Operand& x, int64_t columns) {
    if (!x.present()) return;
    const int64_t size = dtype_size(x.dtype);
    for (int64_t token = first; token < p.total_kv; ++token) {
      for (int64_t head = 0; head < problem.kv_heads; ++head) {
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t at = token * x.row + head * x.head + c * x.column;
          std::fill_n(static_cast<std::byte*>(x.pointer) + at * size, size, std::byte{0});
        }
      }
    }
  };
  clear(b.d_k, p.head_dim);
  clear(b.d_v, p.head_dim_v);
}

}  // namespace

const char* backward_supports(const Problem&, const DeviceInfo&) { return nullptr; }

Config backward_configure(const Problem& problem, const DeviceInfo& device, Workspace& ledger,
                          const BackwardKernel& kernel) {
  BackwardParams b;
  set_shape(problem, b);
  const ForwardParams& p = b.forward;
  const int64_t element = problem.raw.q.dtype == RUNMAX_F64 ? 8 : 4;

  Config config;
  config.q_tile = p.q_tile;
  config.kv_tile = p.kv_tile;
  config.num_splits = static_cast<int32_t>(b.chunks);
  config.split_len = b.chunks > 1 ? b.chunk_len : 0;
  config.fast_tile_bytes = static_cast<int64_t>(kernel.scratch_bytes(b));
  config.fast_level = "L2";

  ledger.book("scratch", static_cast<size_t>(device.max_threads) * kernel.scratch_bytes(b));
  book_work(problem, ledger);
  ledger.book("row_term", Workspace::bytes({problem.q_heads, problem.total_q, element}));
  if (Problem::present(problem.raw.d_q)) {
    ledger.book("d_q_partial", Workspace::bytes({b.chunks, problem.q_heads, b.q_tiles,
                                                 problem.head_dim, p.q_tile, element}));
  }
  if (Problem::present(problem.raw.d_alibi_slopes)) {
    ledger.book("alibi_partial", Workspace::bytes({b.chunks, problem.batch, problem.q_heads, 8}));
  }
  return config;
}

double backward_cost(const Problem& problem, const DeviceInfo& device, double flops_per_second) {
  const double pairs = static_cast<double>(problem.total_q) * static_cast<double>(problem.kv_len) *
                       static_cast<double>(problem.q_heads);
  const double operations =
      2 * pairs * static_cast<double>(3 * problem.head_dim + 2 * problem.head_dim_v);
  return operations / (flops_per_second * device.max_threads);
}

Status backward_launch(const Launch& launch, const BackwardKernel& kernel) {
  BackwardParams b;
  set_shape(launch.problem, b);
  set_data(launch, b);
  const ForwardParams& p = b.forward;
  const int64_t tiles = prepare_work(launch, b.forward);
  const Problem& problem = launch.problem;

  Tasks tasks{b, kernel.row_terms, launch.ledger.take(launch.workspace, "scratch"),
              kernel.scratch_bytes(b)};
  const auto run = [&](void (*function)(const BackwardParams&, int64_t, std::byte*),
                       int64_t items) {
    tasks.run = function;
    launch.device.parallel_for(items, Tasks::item, &tasks);
  };
  run(kernel.row_terms, tiles * p.q_heads);
  if (b.d_q.present() || b.d_k.present() || b.d_v.present() || b.d_alibi_slopes.present()) {
    run(kernel.keys, problem.batch * problem.kv_heads * b.chunks);
  }
  clear_unused_keys(problem, b);
  if (b.d_q.present()) run(kernel.queries, tiles * p.q_heads);
  if (b.d_bias.present()) run(kernel.bias, bias_items(b));
  if (b.d_sink.present() || b.d_alibi_slopes.present()) run(kernel.head, problem.q_heads);
  return Status::ok();
}

}  // namespace runmax::cpu
