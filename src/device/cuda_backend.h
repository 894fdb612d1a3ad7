// The seam to librunmax_cuda.so, which holds everything that needs the CUDA toolkit. The library
// loads it on the first request for a GPU; both are built from one tree, or they do not work
// together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"
#include "device/device.h"
#include "runmax/runmax.h"

namespace runmax {

struct KernelEntry;

struct CudaBackend {
  const KernelEntry* kernels;  // in the order of cuda/kernel_list.h
  size_t kernel_count;
  // How many GPUs there are; `reason` says why there is none.
  int32_t (*device_count)(std::string& reason);
  // `options` is in the current layout.
  Result<std::unique_ptr<Device>> (*create_device)(const runmax_device_options& options);
};

// What librunmax_cuda.so exports: its backend, or nullptr if `build` is not the build it belongs
// to.
using CudaBackendEntry = const CudaBackend* (*)(const char* build);
inline constexpr const char* kCudaBackendEntry = "runmax_cuda_backend";

// Loads the backend once. nullptr, and the reason why not.
const CudaBackend* cuda_backend(std::string& reason);

}  // namespace runmax
