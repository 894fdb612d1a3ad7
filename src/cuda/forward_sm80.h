// The instances of the tensor-core kernel, one file of instances/ each, and what they are launched
// with.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/forward_params.h"

namespace runmax::cuda::sm80 {

struct ForwardArgs {
  ForwardParams p;
  uint32_t section;  // dense: (sequence, head) pairs whose q tiles are interleaved, last rows first
  float scale_log2;  // of dot products; 0: scores are in natural units
  bool async_copies;  // q, k and v can be copied in pieces of 16 bytes
  bool wide_stores;   // out can be stored in pieces of 16 bytes
};

// A compiled instance: what the launch code has to know of it.
struct Instance {
  int32_t head_dim;  // the most it takes, of head_dim and head_dim_v
  int32_t q_tile;
  int32_t kv_tile;
  int32_t blocks;  // on a multiprocessor at once, where its shared memory has room
  size_t shared_bytes;
  cudaError_t (*load)();
  cudaError_t (*launch)(const ForwardArgs& args, dim3 grid, cudaStream_t stream);
};

// X(element name, element, head_dim). For each a fast instance, which knows no operation on single
// scores, and one with every feature.
#define RUNMAX_SM80_INSTANCES(X) \
  X(bf16, Bf16, 64)              \
  X(bf16, Bf16, 96)              \
  X(bf16, Bf16, 128)             \
  X(bf16, Bf16, 192)             \
  X(bf16, Bf16, 256)             \
  X(f16, F16, 64)                \
  X(f16, F16, 96)                \
  X(f16, F16, 128)               \
  X(f16, F16, 192)               \
  X(f16, F16, 256)

#define RUNMAX_DECLARE(name, element, head_dim) \
  extern const Instance name##_##head_dim;      \
  extern const Instance name##_##head_dim##_features;
RUNMAX_SM80_INSTANCES(RUNMAX_DECLARE)
#undef RUNMAX_DECLARE

}  // namespace runmax::cuda::sm80
