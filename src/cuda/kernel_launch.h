// What each row of the kernel table calls (kernel_list.h). One file per kernel defines them, and
// name_load(): loads the kernel's code on the current device and raises its shared memory limit;
// called once per device, so that no launch has to, not even the first one into a graph.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernel_list.h"
#include "registry/kernel_entry.h"

namespace runmax::cuda {

#define RUNMAX_DECLARE(name, op, summary)                                                     \
  const char* name##_supports(const Problem& problem, const DeviceInfo& info);                \
  Config name##_configure(const Problem& problem, const DeviceInfo& info, Workspace& ledger); \
  double name##_cost(const Problem& problem, const DeviceInfo& info, const Config& config);   \
  Status name##_launch(const Launch& launch);                                                 \
  cudaError_t name##_load();
RUNMAX_CUDA_KERNELS(RUNMAX_DECLARE)
#undef RUNMAX_DECLARE

}  // namespace runmax::cuda
