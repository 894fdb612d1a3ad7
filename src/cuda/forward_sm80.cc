// The row of the tensor-core kernel: which problems, which instance, which grid.
#include "cuda/forward_sm80.h"

#include <algorithm>
#include <cmath>

#include "cuda/forward_launch.h"
#include "cuda/kernel_launch.h"
#include "policy/bind.h"

namespace runmax::cuda {

namespace {

using sm80::Instance;

constexpr int64_t kMaxHeadDim = 256;
// Positions are 32 bits wide, with room to add three of them.
constexpr int64_t kMaxLength = int64_t{1} << 29;
// Tensor cores truncate as they add up. Equal terms drift by up to keys / 16 units of 2^-24: with
// so many keys in one part by about half of what the gate of out allows (measured).
constexpr int64_t kMaxKeysF16 = int64_t{1} << 17;
constexpr int64_t kMaxKeysBf16 = int64_t{1} << 20;
// Where rows differ in the number of keys they see, the longest of so many heads run first: as many
// as half of L2 holds the keys and values of, within these bounds.
constexpr int64_t kMinSectionHeads = 8;
constexpr int64_t kMaxSectionHeads = 64;
// Shared memory that a block takes beside its tiles: context and sums, the system's kilobyte.
constexpr size_t kReservedShared = 6 << 10;
// Multiply-adds counted as two operations, per second and multiprocessor.
constexpr double kFastRate = 2.5e12;
constexpr double kFeatureRate = 0.8e12;

int64_t max_keys(const Problem& problem) {
  return problem.raw.q.dtype == RUNMAX_F16 ? kMaxKeysF16 : kMaxKeysBf16;
}

int64_t widest(const Problem& problem) { return std::max(problem.head_dim, problem.head_dim_v); }

const Instance& instance(const Problem& problem, bool features) {
#define RUNMAX_PICK(name, element, dim)                                                   \
  if (RUNMAX_IS_##name == (problem.raw.q.dtype == RUNMAX_BF16) && widest(problem) <= dim) \
    return features ? sm80::name##_##dim##_features : sm80::name##_##dim;
#define RUNMAX_IS_bf16 true
#define RUNMAX_IS_f16 false
  RUNMAX_SM80_INSTANCES(RUNMAX_PICK)
#undef RUNMAX_IS_f16
#undef RUNMAX_IS_bf16
#undef RUNMAX_PICK
  return sm80::bf16_256_features;  // not reached: supports() has checked head_dim
}

// Scores that are not powers of two of the scaled dot product: see softmax.cuh.
bool natural(const Problem& problem) {
  return problem.scale <= 0 || problem.raw.softcap > 0 || Problem::present(problem.raw.bias) ||
         Problem::present(problem.raw.alibi_slopes);
}

bool needs_features(const Problem& problem) {
  return natural(problem) || Problem::present(problem.raw.mask) ||
         Problem::present(problem.raw.segment_ids_q) || problem.raw.dropout > 0;
}

// Can rows of `columns` 16-bit elements be copied in pieces of 16 bytes?
bool in_pieces(const runmax_tensor& t, const void* pointer) {
  constexpr int64_t kPiece = 8;
  const int last = t.rank - 1;
  bool whole = reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && t.shape[last] % kPiece == 0 &&
               (t.stride[last] == 1 || t.shape[last] == 1);
  for (int i = 0; i < last; ++i) whole &= t.stride[i] % kPiece == 0 || t.shape[i] == 1;
  return whole;
}

bool async_copies(const Problem& problem, const void* q, const void* k, const void* v) {
  return in_pieces(problem.raw.q, q) && in_pieces(problem.raw.k, k) && in_pieces(problem.raw.v, v);
}

// Query heads whose tiles are interleaved in the list of work.
int64_t section(const Problem& problem, const DeviceInfo& device) {
  if (problem.window_right == kUnbounded) return 1;  // rows see equally many keys
  const int64_t head_bytes =
      std::max<int64_t>(2 * problem.kv_len * (problem.head_dim + problem.head_dim_v), 1);
  const int64_t kv_heads = static_cast<int64_t>(device.l2_bytes) / 2 / head_bytes;
  const int64_t heads =
      std::clamp(kv_heads * problem.group_size, kMinSectionHeads, kMaxSectionHeads);
  return std::max<int64_t>(heads / problem.group_size, 1) * problem.group_size;
}

}  // namespace

const char* forward_sm80_supports(const Problem& problem, const DeviceInfo& device) {
  if (device.compute_capability < 80) return "device: forward_sm80 needs compute capability 8.0";
  // Not F16: its weights below 2^-24 of the largest vanish, which the gate of out does not allow.
  if (problem.raw.q.dtype != RUNMAX_BF16) {
    return "q: forward_sm80 takes BF16";
  }
  if (widest(problem) > kMaxHeadDim) return "head_dim: forward_sm80 takes at most 256";
  if (Problem::present(problem.raw.block_index)) {
    return "block_index: forward_sm80 does not take block selection";
  }
  if (problem.has(RUNMAX_BATCH_INVARIANT) && problem.raw.num_splits > 1) {
    return "num_splits: batch_invariant fixes the split size, so the number cannot be forced";
  }
  if (problem.q_len >= kMaxLength || problem.kv_len >= kMaxLength) {
    return "q_len: forward_sm80 takes sequences below 2^29";
  }
  const int64_t parts = std::max(problem.raw.num_splits, 1);
  if (problem.kv_len > max_keys(problem) * parts &&
      (problem.raw.num_splits > 0 || problem.has(RUNMAX_BATCH_INVARIANT))) {
    return "kv_len: forward_sm80 adds up at most 2^17 keys of F16, 2^20 of BF16, in one part";
  }
  if (instance(problem, true).shared_bytes + kReservedShared > device.l1_bytes) {
    return "device: too little shared memory for this head_dim";
  }
  return nullptr;
}

cudaError_t forward_sm80_load() {
#define RUNMAX_LOAD(name, element, head_dim)                                            \
  if (const cudaError_t e = sm80::name##_##head_dim.load(); e != cudaSuccess) return e; \
  if (const cudaError_t e = sm80::name##_##head_dim##_features.load(); e != cudaSuccess) return e;
  RUNMAX_SM80_INSTANCES(RUNMAX_LOAD)
#undef RUNMAX_LOAD
  return cudaSuccess;
}

namespace {

// Planned for pointers of 16 bytes; a launch with others takes the instance with features.
const Instance& planned_instance(const Problem& problem, const DeviceInfo& device) {
  const Instance& fast = instance(problem, false);
  const bool room = fast.shared_bytes + kReservedShared <= device.l1_bytes;
  const bool features =
      needs_features(problem) || !async_copies(problem, nullptr, nullptr, nullptr) || !room;
  return instance(problem, features);
}

}  // namespace

Config forward_sm80_configure(const Problem& problem, const DeviceInfo& device, Workspace& ledger) {
  const Instance& kernel = planned_instance(problem, device);
  const int64_t blocks = std::min<int64_t>(
      kernel.blocks,
      static_cast<int64_t>(device.l1_bytes / (kernel.shared_bytes + kReservedShared)));
  const Tiles tiles{kernel.q_tile, kernel.kv_tile};
  const int64_t resident = device.max_threads * std::max<int64_t>(blocks, 1);
  Config config;
  if (problem.raw.num_splits == 0 && problem.kv_len > max_keys(problem)) {
    Problem split = problem;
    split.raw.num_splits =
        static_cast<int32_t>((problem.kv_len + max_keys(problem) - 1) / max_keys(problem));
    config = configure_forward(split, device, ledger, tiles, resident);
  } else {
    config = configure_forward(problem, device, ledger, tiles, resident);
  }
  config.fast_tile_bytes = static_cast<int64_t>(kernel.shared_bytes);
  return config;
}

double forward_sm80_cost(const Problem& problem, const DeviceInfo& device, const Config&) {
  const double pairs = static_cast<double>(problem.total_q) * static_cast<double>(problem.kv_len) *
                       static_cast<double>(problem.q_heads);
  const double rate = needs_features(problem) ? kFeatureRate : kFastRate;
  return 2 * pairs * static_cast<double>(problem.head_dim + problem.head_dim_v) /
         (rate * device.max_threads);
}

Status forward_sm80_launch(const Launch& launch) {
  const Problem& problem = launch.problem;
  const runmax_args& args = launch.args;
  sm80::ForwardArgs a{};
  a.async_copies = async_copies(problem, args.q, args.k, args.v);
  a.wide_stores =
      problem.raw.out.dtype == problem.raw.q.dtype && in_pieces(problem.raw.out, args.out);
  const Instance& planned = planned_instance(problem, launch.device.info());
  const Instance& kernel = a.async_copies ? planned : instance(problem, true);
  a.scale_log2 = natural(problem) ? 0.0f : static_cast<float>(problem.scale * M_LOG2E);
  a.section = static_cast<uint32_t>(section(problem, launch.device.info()));

  Config config = launch.config;
  config.q_tile = kernel.q_tile;
  const Launch as{problem,          config,        launch.ledger, args,
                  launch.workspace, launch.device, launch.stream};
  RUNMAX_RETURN_IF_ERROR(begin_forward(as, a.p));
  const int64_t items = max_tiles(problem, kernel.q_tile) * problem.q_heads * config.num_splits;
  if (items == 0) return Status::ok();
  constexpr int64_t kMaxWidth = int64_t{1} << 30;
  const dim3 grid(static_cast<unsigned>(std::min(items, kMaxWidth)),
                  static_cast<unsigned>((items + kMaxWidth - 1) / kMaxWidth));
  RUNMAX_RETURN_IF_ERROR(status_of(kernel.launch(a, grid, stream_of(launch)), "forward"));
  return end_forward(as, a.p);
}

}  // namespace runmax::cuda
