// The instances of the generic kernel, one file of instances/ each.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/forward_params.h"

namespace runmax::cuda {

// A compiled instance: what the launch code has to know of it.
struct GenericInstance {
  int32_t rows;     // of a q tile
  int32_t columns;  // of V in a block
  size_t shared_bytes;
  size_t total_bytes;  // of one block's total, in the workspace
  cudaError_t (*load)();
  // next: zero, or null if no block takes more than one item.
  cudaError_t (*launch)(const ForwardParams& p, void* totals, unsigned long long* next,
                        unsigned blocks, cudaStream_t stream);
};

// halves: 64-column parts of a V block.
#define RUNMAX_GENERIC_INSTANCES(X) \
  X(f32_1, float, float, 8, 1)      \
  X(f32_2, float, float, 8, 2)      \
  X(bf16_1, Bf16, float, 8, 1)      \
  X(bf16_2, Bf16, float, 8, 2)      \
  X(f16_1, F16, float, 8, 1)        \
  X(f16_2, F16, float, 8, 2)        \
  X(f64_1, double, double, 4, 1)

#define RUNMAX_DECLARE(name, stored, arithmetic, rows_per_thread, halves) \
  extern const GenericInstance generic_##name;
RUNMAX_GENERIC_INSTANCES(RUNMAX_DECLARE)
#undef RUNMAX_DECLARE

}  // namespace runmax::cuda
