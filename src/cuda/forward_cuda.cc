// The row of the generic kernel: takes every valid problem.
#include <algorithm>

#include "cuda/forward_generic.h"
#include "cuda/forward_launch.h"
#include "cuda/kernel_launch.h"

namespace runmax::cuda {

namespace {

constexpr int32_t kKeys = 64;
constexpr int64_t kChunk = 4096;

const GenericInstance& instance(const Problem& problem) {
  const bool one = problem.head_dim_v <= 64;
  switch (problem.raw.q.dtype) {
    case RUNMAX_F64:
      return generic_f64_1;
    case RUNMAX_BF16:
      return one ? generic_bf16_1 : generic_bf16_2;
    case RUNMAX_F16:
      return one ? generic_f16_1 : generic_f16_2;
    default:
      return one ? generic_f32_1 : generic_f32_2;
  }
}

// One block a multiprocessor: its threads take all the registers.
int64_t resident_blocks(const DeviceInfo& device) { return device.max_threads; }

// Work items of the grid, at most.
int64_t max_items(const Problem& problem, const Config& config) {
  const int64_t v_blocks =
      (problem.head_dim_v + instance(problem).columns - 1) / instance(problem).columns;
  return static_cast<int64_t>(Workspace::bytes(
      {max_tiles(problem, config.q_tile), problem.q_heads, config.num_splits, v_blocks}));
}

// A grid of so many blocks strides over the items. Only rows of more than one chunk need a total.
int64_t grid_blocks(const Problem& problem, const DeviceInfo& device, const Config& config) {
  return std::clamp<int64_t>(max_items(problem, config), 1, resident_blocks(device));
}

}  // namespace

const char* forward_cuda_supports(const Problem&, const DeviceInfo&) { return nullptr; }

cudaError_t forward_cuda_load() {
#define RUNMAX_LOAD(name, stored, arithmetic, rows_per_thread, halves) \
  if (const cudaError_t error = generic_##name.load(); error != cudaSuccess) return error;
  RUNMAX_GENERIC_INSTANCES(RUNMAX_LOAD)
#undef RUNMAX_LOAD
  return cudaSuccess;
}

Config forward_cuda_configure(const Problem& problem, const DeviceInfo& device, Workspace& ledger) {
  const GenericInstance& kernel = instance(problem);
  Config config =
      configure_forward(problem, device, ledger, {kernel.rows, kKeys}, resident_blocks(device));
  config.fast_tile_bytes = static_cast<int64_t>(kernel.shared_bytes);
  if (max_items(problem, config) > resident_blocks(device)) {
    ledger.book("next", sizeof(unsigned long long));
  }
  if (problem.kv_len > kChunk) {
    ledger.book("total",
                static_cast<size_t>(grid_blocks(problem, device, config)) * kernel.total_bytes);
  }
  return config;
}

double forward_cuda_cost(const Problem& problem, const DeviceInfo& device, const Config&) {
  const double rate = problem.raw.q.dtype == RUNMAX_F64 ? 100e9 : 300e9;  // of a multiprocessor
  const double pairs = static_cast<double>(problem.total_q) * static_cast<double>(problem.kv_len) *
                       static_cast<double>(problem.q_heads);
  return 2 * pairs * static_cast<double>(problem.head_dim + problem.head_dim_v) /
         (rate * device.max_threads);
}

Status forward_cuda_launch(const Launch& launch) {
  ForwardParams p;
  RUNMAX_RETURN_IF_ERROR(begin_forward(launch, p));
  if (max_items(launch.problem, launch.config) == 0) return Status::ok();
  const int64_t blocks = grid_blocks(launch.problem, launch.device.info(), launch.config);
  const cudaStream_t stream = stream_of(launch);
  void* total = launch.ledger.take(launch.workspace, "total");
  auto* next = launch.ledger.take<unsigned long long>(launch.workspace, "next");
  if (next != nullptr) {
    RUNMAX_RETURN_IF_ERROR(status_of(cudaMemsetAsync(next, 0, sizeof *next, stream), "forward"));
  }
  const cudaError_t error =
      instance(launch.problem).launch(p, total, next, static_cast<unsigned>(blocks), stream);
  RUNMAX_RETURN_IF_ERROR(status_of(error, "forward"));
  return end_forward(launch, p);
}

}  // namespace runmax::cuda
