#include "registry/kernel_table.h"

#include "cpu/kernel_table.h"

namespace runmax {

std::span<const KernelEntry> kernel_table() { return cpu::kernel_table(); }

}  // namespace runmax
