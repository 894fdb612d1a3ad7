// Owners for what the C interface hands out.
#pragma once

#include <cstddef>
#include <memory>

#include "error.h"
#include "options.h"
#include "runmax/runmax.h"

namespace runmax::cli {

struct DeviceDestroyer {
  void operator()(runmax_device* device) const { runmax_device_destroy(device); }
};
using Device = std::unique_ptr<runmax_device, DeviceDestroyer>;

struct PlanDestroyer {
  void operator()(runmax_plan* plan) const { runmax_plan_destroy(plan); }
};
using Plan = std::unique_ptr<runmax_plan, PlanDestroyer>;

// The device that --device and --threads name. `isa_mask` 0 = all that the machine has.
Device make_device(const Options& options, uint64_t isa_mask = 0);
runmax_device_info info_of(const runmax_device* device);

Plan make_plan(const runmax_problem& problem, runmax_device* device);
runmax_plan_info info_of(const runmax_plan* plan);

// Refuses what cannot fit: the operating system would promise the memory and end the process later.
void require_memory(const runmax_device* device, double bytes);

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(runmax_device* device, size_t bytes) : device_(device), bytes_(bytes) {
    require(runmax_device_alloc(device, bytes, &pointer_));
  }
  ~DeviceBuffer() {
    if (pointer_ != nullptr) runmax_device_free(device_, pointer_);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(pointer_, other.pointer_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* get() const { return pointer_; }
  size_t bytes() const { return bytes_; }

 private:
  runmax_device* device_ = nullptr;
  void* pointer_ = nullptr;
  size_t bytes_ = 0;
};

void execute(const runmax_plan* plan, runmax_device* device, const runmax_args& args);

}  // namespace runmax::cli
