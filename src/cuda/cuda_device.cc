#include "cuda/cuda_device.h"

#include <algorithm>
#include <string>

#include "cuda/forward_launch.h"
#include "cuda/kernel_launch.h"
#include "cuda/schedule.h"

namespace runmax::cuda {

namespace {

constexpr int kFirstMajor = 8;

// Every kernel's code, now: launches into a graph must not have to load it.
cudaError_t load_kernels() {
  if (const cudaError_t error = load_schedule(); error != cudaSuccess) return error;
#define RUNMAX_LOAD(name, op, summary) \
  if (const cudaError_t error = name##_load(); error != cudaSuccess) return error;
  RUNMAX_CUDA_KERNELS(RUNMAX_LOAD)
#undef RUNMAX_LOAD
  return cudaSuccess;
}

class CudaDevice : public Device {
 public:
  CudaDevice(int32_t index, const cudaDeviceProp& properties) {
    info_.kind = RUNMAX_DEVICE_CUDA;
    info_.index = index;
    info_.max_threads = properties.multiProcessorCount;
    info_.isa = info_.isa_found = 0;
    info_.compute_capability = 10 * properties.major + properties.minor;
    info_.l1_bytes = properties.sharedMemPerMultiprocessor;
    info_.l2_bytes = static_cast<uint64_t>(properties.l2CacheSize);
    info_.memory_bytes = properties.totalGlobalMem;
    info_.name = properties.name;
  }

  Status alloc(size_t bytes, void** pointer) override {
    const CurrentDevice current(info_.index);
    return status_of(cudaMalloc(pointer, std::max<size_t>(bytes, 1)), "alloc");
  }

  Status free(void* pointer) override {
    const CurrentDevice current(info_.index);
    return status_of(cudaFree(pointer), "free");
  }

  Status copy(void* to, const void* from, size_t bytes, int32_t direction, void* stream) override {
    const CurrentDevice current(info_.index);
    const cudaMemcpyKind kind = direction == RUNMAX_COPY_TO_DEVICE     ? cudaMemcpyHostToDevice
                                : direction == RUNMAX_COPY_FROM_DEVICE ? cudaMemcpyDeviceToHost
                                                                       : cudaMemcpyDeviceToDevice;
    return status_of(cudaMemcpyAsync(to, from, bytes, kind, static_cast<cudaStream_t>(stream)),
                     "copy");
  }

  Status sync(void* stream) override {
    const CurrentDevice current(info_.index);
    return status_of(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "sync");
  }

  Status measure_roofs(runmax_roofs& roofs) override {
    const CurrentDevice current(info_.index);
    roofs.threads = info_.max_threads;
    return status_of(
        cuda::measure_roofs(info_.max_threads, roofs.flops_per_second, roofs.bytes_per_second),
        "measure_roofs");
  }

  // GPU kernels need no host threads.
  void parallel_for(int64_t tasks, runmax_task task, void* context) const override {
    for (int64_t i = 0; i < tasks; ++i) task(context, i, 0);
  }
};

}  // namespace

int32_t device_count(std::string& reason) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  reason.clear();
  if (error == cudaSuccess && count > 0) return count;
  (void)cudaGetLastError();  // an absent GPU must not show up as the error of a later call
  int driver = 0;
  if (error == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
      driver == 0) {
    reason = "no NVIDIA driver is installed";
  } else {
    reason = error == cudaSuccess ? "no GPU is visible" : cudaGetErrorString(error);
  }
  return 0;
}

Result<std::unique_ptr<Device>> create_device(const runmax_device_options& options) {
  std::string reason;
  const int32_t count = device_count(reason);
  if (count == 0) return Status(RUNMAX_DEVICE_ERROR, "kind", "kind: there is no GPU: " + reason);
  if (options.index < 0 || options.index >= count) {
    return Status::invalid("index", "is " + std::to_string(options.index) + ", must be in [0, " +
                                        std::to_string(count) + ")");
  }
  cudaDeviceProp properties;
  RUNMAX_RETURN_IF_ERROR(status_of(cudaGetDeviceProperties(&properties, options.index), "index"));
  const std::string found =
      std::to_string(properties.major) + "." + std::to_string(properties.minor);
  if (properties.major < kFirstMajor) {
    return Status(RUNMAX_DEVICE_ERROR, "index",
                  "index: names a GPU of compute capability " + found + ", must be 8.0 or later");
  }
  const CurrentDevice current(options.index);
  const cudaError_t error = load_kernels();
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    (void)cudaGetLastError();
    return Status(RUNMAX_DEVICE_ERROR, "index",
                  "index: names a GPU of compute capability " + found +
                      ", must be one that this build has code for (RUNMAX_CUDA_ARCHITECTURES)");
  }
  RUNMAX_RETURN_IF_ERROR(status_of(error, "index"));
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(options.index, properties));
}

}  // namespace runmax::cuda
