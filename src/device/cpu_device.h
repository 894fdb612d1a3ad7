// The processor as a device: host memory and a pool of threads.
#pragma once

#include <memory>

#include "device/device.h"
#include "device/environment.h"

namespace runmax {

// `options` is in the current layout; `environment` gives what they leave open.
Result<std::unique_ptr<Device>> create_cpu_device(const runmax_device_options& options,
                                                  const EnvironmentSettings& environment);

}  // namespace runmax
