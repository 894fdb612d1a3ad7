// The one symbol of librunmax_cuda.so: the backend as a table.
#include <cstring>
#include <iterator>

#include "build_hash.h"
#include "cuda/cuda_device.h"
#include "cuda/kernel_launch.h"
#include "device/cuda_backend.h"

namespace runmax::cuda {

namespace {

// A launch on its device, whatever the caller's current one is.
template <Status (*launch)(const Launch&)>
Status on_device(const Launch& request) {
  const CurrentDevice current(request.device.info().index);
  return launch(request);
}

#define RUNMAX_ROW(name, op, summary) \
  KernelEntry{#name,                  \
              summary,                \
              RUNMAX_DEVICE_CUDA,     \
              op,                     \
              /*required_isa=*/0,     \
              name##_supports,        \
              name##_configure,       \
              name##_cost,            \
              on_device<name##_launch>},
constexpr KernelEntry kTable[] = {RUNMAX_CUDA_KERNELS(RUNMAX_ROW)};
#undef RUNMAX_ROW

constexpr CudaBackend kBackend = {kTable, std::size(kTable), device_count, create_device};

}  // namespace

}  // namespace runmax::cuda

extern "C" __attribute__((visibility("default"))) const runmax::CudaBackend* runmax_cuda_backend(
    const char* build) {
  return std::strcmp(build, RUNMAX_BUILD_HASH) == 0 ? &runmax::cuda::kBackend : nullptr;
}
