// What the machine reaches now: the two roofs of the roofline.
#pragma once

#include "core/status.h"
#include "device/device.h"
#include "runmax/runmax.h"

namespace runmax {

// On all thread slots of the device at once, with the instruction sets that it may use.
Status measure_cpu_roofs(Device& device, runmax_roofs& roofs);

}  // namespace runmax
