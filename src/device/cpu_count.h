// How many threads this process may usefully run.
#pragma once

#include <cstdint>

namespace runmax {

// What a caller may ask for.
inline constexpr int32_t kMaxThreads = 1024;

// The smaller of the affinity mask's size and the CPU quota of the control group; at least 1.
int32_t available_cpus();

}  // namespace runmax
