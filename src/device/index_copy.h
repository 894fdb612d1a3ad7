// The argument check where index tensors lie in the memory of a device.
#pragma once

#include "core/problem.h"
#include "core/status.h"
#include "device/device.h"
#include "runmax/runmax.h"

namespace runmax {

// core's check_args, with copies of the index tensors on the host. Waits for the stream.
Status check_device_args(Device& device, const Problem& problem, const runmax_args& args,
                         void* stream);

}  // namespace runmax
