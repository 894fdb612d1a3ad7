// All kernels of all backends, in the order of preference of each backend.
#pragma once

#include <span>

#include "registry/kernel_entry.h"

namespace runmax {

std::span<const KernelEntry> kernel_table();

}  // namespace runmax
