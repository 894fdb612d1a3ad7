// The kernels of the CPU backend. A kernel exists if and only if it has a row here; the last row
// takes every valid problem.
#pragma once

#include <span>

#include "registry/kernel_entry.h"

namespace runmax::cpu {

std::span<const KernelEntry> kernel_table();

}  // namespace runmax::cpu
