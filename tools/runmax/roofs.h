// This machine's measured roofs, remembered between runs.
#pragma once

#include "runmax/runmax.h"

namespace runmax::cli {

// runmax_measure_roofs(), or what an earlier run measured for the same processor, instruction sets
// and thread count: $XDG_CACHE_HOME/runmax/roofs.json, else ~/.cache/runmax/roofs.json. A cache
// that cannot be read or written costs half a second, nothing else.
runmax_roofs machine_roofs(runmax_device* device);

}  // namespace runmax::cli
