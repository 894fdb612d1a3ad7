// The body of each instance of the tensor-core kernel, and the one table of its tiles.
// docs/kernels/forward_sm80.md says what was measured.
#pragma once

#include "cuda/forward_sm80.h"
#include "cuda/kernels/forward_sm80.cuh"

namespace runmax::cuda::sm80 {

// The kv tile depends on the head dim alone: it decides a row's bits.
template <class Element, int kHeadDim, bool kFeatures>
struct Tuned;
//                                 head_dim warps m_tiles kv_tile stages Q in registers blocks
template <class E>
struct Tuned<E, 64, false> : ForwardConfig<E, 64, 4, 2, 128, 2, false, 2, false> {};
template <class E>
struct Tuned<E, 96, false> : ForwardConfig<E, 96, 4, 2, 64, 2, false, 2, false> {};
template <class E>
struct Tuned<E, 128, false> : ForwardConfig<E, 128, 4, 2, 64, 2, false, 2, false> {};
template <class E>
struct Tuned<E, 192, false> : ForwardConfig<E, 192, 4, 1, 64, 1, false, 2, false> {};
template <class E>
struct Tuned<E, 256, false> : ForwardConfig<E, 256, 4, 1, 64, 1, false, 2, false> {};
template <class E>
struct Tuned<E, 64, true> : ForwardConfig<E, 64, 4, 1, 128, 1, false, 2, true> {};
template <class E, int kHeadDim>
struct Tuned<E, kHeadDim, true> : ForwardConfig<E, kHeadDim, 4, 1, 64, 1, false, 2, true> {};

template <class Config>
constexpr Instance instance_of() {
  return {Config::kHeadDim,
          Config::kQTile,
          Config::kKvTile,
          Config::kBlocks,
          Config::kSharedBytes,
          [] {
            int device = 0;
            int most = 0;
            cudaError_t error = cudaGetDevice(&device);
            if (error == cudaSuccess) {
              error =
                  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
            }
            if (error != cudaSuccess || most < Config::kSharedBytes)
              return error;  // not for this GPU
            return cudaFuncSetAttribute(
                forward<Config>, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSharedBytes);
          },
          [](const ForwardArgs& args, dim3 grid, cudaStream_t stream) {
            forward<Config><<<grid, Config::kThreads, Config::kSharedBytes, stream>>>(args);
            return cudaGetLastError();
          }};
}

}  // namespace runmax::cuda::sm80

#define RUNMAX_SM80_INSTANCE(name, element, head_dim)                                \
  namespace runmax::cuda::sm80 {                                                     \
  const Instance name##_##head_dim = instance_of<Tuned<element, head_dim, false>>(); \
  }
#define RUNMAX_SM80_FEATURES(name, element, head_dim)                                          \
  namespace runmax::cuda::sm80 {                                                               \
  const Instance name##_##head_dim##_features = instance_of<Tuned<element, head_dim, true>>(); \
  }
