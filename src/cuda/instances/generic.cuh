// The body of each instance of the generic kernel.
#pragma once

#include "cuda/forward_generic.h"
#include "cuda/kernels/forward_generic.cuh"

#define RUNMAX_GENERIC_INSTANCE(name, stored, arithmetic, rows_per_thread, halves) \
  namespace runmax::cuda {                                                         \
  const GenericInstance generic_##name =                                           \
      generic_instance<stored, arithmetic, rows_per_thread, halves>();             \
  }

namespace runmax::cuda {

template <class Stored, class T, int kPerThread, int kHalves>
constexpr GenericInstance generic_instance() {
  using Kernel = GenericForward<Stored, T, kPerThread, kHalves>;
  return {Kernel::kRows,
          Kernel::kColumns,
          sizeof(typename Kernel::Shared),
          sizeof(T) * Kernel::kRows * Kernel::kColumns,
          [] {
            return cudaFuncSetAttribute(forward_generic<Stored, T, kPerThread, kHalves>,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(sizeof(typename Kernel::Shared)));
          },
          [](const ForwardParams& p, void* totals, unsigned long long* next, unsigned blocks,
             cudaStream_t stream) {
            constexpr size_t kBytes = sizeof(typename Kernel::Shared);
            forward_generic<Stored, T, kPerThread, kHalves>
                <<<blocks, kGenericThreads, kBytes, stream>>>(p, static_cast<T*>(totals), next);
            return cudaGetLastError();
          }};
}

}  // namespace runmax::cuda
