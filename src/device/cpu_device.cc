#include "device/cpu_device.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "device/cpu_count.h"
#include "device/cpu_features.h"
#include "device/roofs.h"
#include "device/thread_pool.h"

namespace runmax {
namespace {

constexpr uint64_t kIsaBits = RUNMAX_ISA_BASELINE | RUNMAX_ISA_AVX2 | RUNMAX_ISA_AVX512 |
                              RUNMAX_ISA_AVX512_BF16 | RUNMAX_ISA_AMX_BF16 | RUNMAX_ISA_NEON;

class CpuDevice final : public Device {
 public:
  CpuDevice(DeviceInfo info, const runmax_device_options& options)
      : caller_parallel_for_(options.parallel_for), caller_self_(options.parallel_for_self) {
    info_ = std::move(info);
    if (caller_parallel_for_ == nullptr) {
      const bool spin = info_.max_threads <= available_cpus();
      pool_ = std::make_unique<ThreadPool>(info_.max_threads, spin);
    }
  }

  Status alloc(size_t bytes, void** pointer) override {
    // At least one byte, so that the pointer is never null and can be freed.
    if (posix_memalign(pointer, RUNMAX_WORKSPACE_ALIGNMENT, std::max<size_t>(bytes, 1)) == 0) {
      return Status::ok();
    }
    *pointer = nullptr;
    return {RUNMAX_OUT_OF_MEMORY, "bytes",
            "bytes: is " + std::to_string(bytes) + ", must be at most what this machine can give"};
  }

  Status free(void* pointer) override {
    std::free(pointer);
    return Status::ok();
  }

  Status copy(void* to, const void* from, size_t bytes, int32_t direction, void* stream) override {
    if (direction < RUNMAX_COPY_TO_DEVICE || direction > RUNMAX_COPY_ON_DEVICE) {
      return Status::invalid("direction",
                             "is " + std::to_string(direction) + ", must be in [0, 2]");
    }
    RUNMAX_RETURN_IF_ERROR(check_stream(stream));
    if (bytes == 0) return Status::ok();
    if (to == nullptr) return Status::invalid("to", "is NULL, must point to memory");
    if (from == nullptr) return Status::invalid("from", "is NULL, must point to memory");
    std::memmove(to, from, bytes);
    return Status::ok();
  }

  Status sync(void* stream) override { return check_stream(stream); }

  Status measure_roofs(runmax_roofs& roofs) override { return measure_cpu_roofs(*this, roofs); }

  void parallel_for(int64_t tasks, runmax_task task, void* context) const override {
    if (caller_parallel_for_ != nullptr) {
      if (tasks > 0) caller_parallel_for_(caller_self_, tasks, task, context);
      return;
    }
    pool_->parallel_for(tasks, task, context);
  }

 private:
  static Status check_stream(const void* stream) {
    if (stream == nullptr) return Status::ok();
    return Status::invalid("stream", "is set, must be NULL on the CPU");
  }

  runmax_parallel_for caller_parallel_for_;
  void* caller_self_;
  std::unique_ptr<ThreadPool> pool_;
};

Status check_options(const runmax_device_options& options) {
  if (options.index != 0) {
    return Status::invalid(
        "index", "is " + std::to_string(options.index) + ", must be 0 (there is one CPU device)");
  }
  if (options.max_threads < 0 || options.max_threads > kMaxThreads) {
    return Status::invalid("max_threads", "is " + std::to_string(options.max_threads) +
                                              ", must be in [0, " + std::to_string(kMaxThreads) +
                                              "]");
  }
  const uint64_t unknown = options.isa_mask & ~kIsaBits;
  if (unknown != 0) {
    return Status::invalid("isa_mask", "has unknown bit " +
                                           std::to_string(__builtin_ctzll(unknown)) +
                                           " set, must be a combination of RUNMAX_ISA_* bits");
  }
  return Status::ok();
}

uint64_t physical_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page) : 0;
}

}  // namespace

Result<std::unique_ptr<Device>> create_cpu_device(const runmax_device_options& options,
                                                  const EnvironmentSettings& environment) {
  RUNMAX_RETURN_IF_ERROR(check_options(options));
  CpuFeatures cpu = detect_cpu();
  DeviceInfo info;
  info.isa_found = cpu.isa;
  info.isa = cpu.isa;
  if (environment.isa != 0) {
    // A level that the machine lacks is refused, not replaced: a test of it would test another.
    if ((cpu.isa & environment.isa) == 0) {
      return Status::invalid("RUNMAX_ISA", std::string("is \"") + isa_name(environment.isa) +
                                               "\", must be one that this machine has (" +
                                               isa_names(cpu.isa) + ")");
    }
    info.isa &= isa_level(environment.isa);
  }
  if (options.isa_mask != 0) info.isa &= options.isa_mask;
  info.isa |= RUNMAX_ISA_BASELINE;

  info.max_threads = options.max_threads;
  if (info.max_threads == 0) info.max_threads = environment.threads;
  if (info.max_threads == 0) info.max_threads = std::min(available_cpus(), kMaxThreads);

  if (cpu.l1_bytes != 0) info.l1_bytes = cpu.l1_bytes;
  if (cpu.l2_bytes != 0) info.l2_bytes = cpu.l2_bytes;
  info.l3_bytes = cpu.l3_bytes;
  info.memory_bytes = physical_memory();
  info.name = std::move(cpu.name);
  return std::unique_ptr<Device>(new CpuDevice(std::move(info), options));
}

}  // namespace runmax
