#include "device/device.h"

#include "core/abi.h"
#include "device/cpu_device.h"
#include "device/cuda_backend.h"
#include "device/environment.h"

namespace runmax {

Result<std::unique_ptr<Device>> create_device(const runmax_device_options* options) {
  runmax_device_options current{};
  if (options != nullptr) {
    RUNMAX_RETURN_IF_ERROR(import_struct(*options, kFirstDeviceOptionsSize, current));
  }
  if (current.kind == RUNMAX_DEVICE_CUDA) {
    std::string reason;
    if (const CudaBackend* backend = cuda_backend(reason)) return backend->create_device(current);
    return Status(RUNMAX_DEVICE_ERROR, "kind",
                  "kind: is RUNMAX_DEVICE_CUDA (1), must be RUNMAX_DEVICE_CPU (0): " + reason);
  }
  if (current.kind != RUNMAX_DEVICE_CPU) {
    return Status::invalid("kind", "is " + std::to_string(current.kind) +
                                       ", must be RUNMAX_DEVICE_CPU (0) or RUNMAX_DEVICE_CUDA (1)");
  }
  const Result<EnvironmentSettings> settings = parse_environment(environment());
  if (!settings.is_ok()) return settings.status();
  return create_cpu_device(current, settings.value());
}

int32_t device_count(int32_t kind, std::string& reason) {
  reason.clear();
  if (kind == RUNMAX_DEVICE_CPU) return 1;
  if (kind == RUNMAX_DEVICE_CUDA) {
    const CudaBackend* backend = cuda_backend(reason);
    return backend != nullptr ? backend->device_count(reason) : 0;
  }
  reason = "there is no such kind of device";
  return 0;
}

}  // namespace runmax
