// A device: what it is, its memory, and (on the CPU) its threads. The only readers of cpuid and of
// the environment live in this folder; everyone else gets facts as arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"
#include "runmax/runmax.h"

namespace runmax {

struct DeviceInfo {
  int32_t kind = RUNMAX_DEVICE_CPU;
  int32_t index = 0;
  int32_t max_threads = 1;         // GPU: multiprocessors
  int32_t compute_capability = 0;  // GPU: 10 * major + minor
  uint64_t isa = RUNMAX_ISA_BASELINE;
  uint64_t isa_found = RUNMAX_ISA_BASELINE;
  uint64_t l1_bytes = 32 << 10;  // GPU: shared memory of a multiprocessor
  uint64_t l2_bytes = 1 << 20;
  uint64_t l3_bytes = 0;
  uint64_t memory_bytes = 0;
  std::string name;
};

class Device {
 public:
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }

  virtual Status alloc(size_t bytes, void** pointer) = 0;
  virtual Status free(void* pointer) = 0;
  virtual Status copy(void* to, const void* from, size_t bytes, int32_t direction,
                      void* stream) = 0;
  virtual Status sync(void* stream) = 0;
  virtual Status measure_roofs(runmax_roofs& roofs) = 0;

  // CPU only: see runmax_parallel_for. Allocates nothing. A call from inside a task, or while
  // another thread's call has the pool, runs serially on its caller in slot 0 ... with the same
  // results, because work is never partitioned by thread.
  virtual void parallel_for(int64_t tasks, runmax_task task, void* context) const = 0;

 protected:
  Device() = default;
  DeviceInfo info_;
};

// Creates the device that the options name (nullptr = the CPU with defaults).
Result<std::unique_ptr<Device>> create_device(const runmax_device_options* options);
// Number of devices of a kind; `reason` says why there is none.
int32_t device_count(int32_t kind, std::string& reason);

}  // namespace runmax
