// The seam between the launch code, compiled for the baseline, and the per-ISA kernels.
#pragma once

#include <cstddef>

#include "policy/forward_params.h"
#include "policy/sequence.h"

namespace runmax::cpu {

using policy::ForwardParams;
using policy::kPartialExtra;
using policy::Operand;
using policy::Sequence;
using policy::WorkItem;

// What an ISA object offers. Both functions switch on the type of arithmetic themselves.
struct ForwardKernel {
  size_t (*scratch_bytes)(const ForwardParams&);
  void (*item)(const ForwardParams&, int64_t item, std::byte* scratch);
  void (*merge_item)(const ForwardParams&, int64_t item, std::byte* scratch);
};

}  // namespace runmax::cpu
