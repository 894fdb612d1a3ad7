// A GPU as a device.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "device/device.h"

namespace runmax::cuda {

int32_t device_count(std::string& reason);
Result<std::unique_ptr<Device>> create_device(const runmax_device_options& options);

// Makes a GPU current for a scope; the caller's comes back at its end.
class CurrentDevice {
 public:
  explicit CurrentDevice(int index) {
    if (cudaGetDevice(&previous_) == cudaSuccess && previous_ != index) {
      changed_ = cudaSetDevice(index) == cudaSuccess;
    }
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(previous_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

// Of the current device: F32 multiply-adds from registers, and a stream of reads.
cudaError_t measure_roofs(int multiprocessors, double& flops_per_second, double& bytes_per_second);

}  // namespace runmax::cuda
