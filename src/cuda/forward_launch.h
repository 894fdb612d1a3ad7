// Plan-time and launch-time parts that the forward kernels of this backend share. A kernel's own
// file adds supports(), its tiles, and the launch of its grid:
//
//   Status forward_x_launch(const Launch& launch) {
//     ForwardParams p;
//     RUNMAX_RETURN_IF_ERROR(begin_forward(launch, p));   // binds; lists q tiles if packed
//     kernel<<<grid, threads, bytes, stream_of(launch)>>>(p);
//     return end_forward(launch, p);                      // merges splits; reports launch errors
//   }
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/forward_params.h"
#include "registry/kernel_entry.h"

namespace runmax::cuda {

struct Tiles {
  int32_t q;
  int32_t kv;
};

inline cudaStream_t stream_of(const Launch& launch) {
  return static_cast<cudaStream_t>(launch.stream);
}

// A CUDA error as a status: "device: WHAT failed (text), ..."
Status status_of(cudaError_t error, const char* what);

// At least as many q tiles as a grid meets over all sequences.
int64_t max_tiles(const Problem& problem, int32_t q_tile);

// Config with tiles and splits, and the workspace of both: the keys are split when the q tiles
// alone would leave most of `blocks` (what the GPU runs at once) idle. Batch-invariant problems
// never are.
Config configure_forward(const Problem& problem, const DeviceInfo& device, Workspace& ledger,
                         Tiles tiles, int64_t blocks);

Status begin_forward(const Launch& launch, ForwardParams& p);
Status end_forward(const Launch& launch, const ForwardParams& p);

}  // namespace runmax::cuda
