// Marks small functions that CPU kernels, GPU kernels and plain C++ share.
#pragma once

#if defined(__CUDACC__)
#define RUNMAX_HOST_DEVICE __host__ __device__
#else
#define RUNMAX_HOST_DEVICE
#endif

// Always inlined, so that a translation unit built with instruction-set flags emits no symbol that
// the linker could pick for the baseline.
#define RUNMAX_INLINE RUNMAX_HOST_DEVICE inline __attribute__((always_inline))
