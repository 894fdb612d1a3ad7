// Plan-time and launch-time side of the forward kernel, the same for every ISA.
#pragma once

#include "cpu/forward_params.h"
#include "registry/kernel_entry.h"

namespace runmax::cpu {

const char* forward_supports(const Problem& problem, const DeviceInfo& device);
Config forward_configure(const Problem& problem, const DeviceInfo& device, Workspace& ledger,
                         const ForwardKernel& kernel);
// flops_per_second: what one thread of this ISA reaches in the kernel, roughly.
double forward_cost(const Problem& problem, const DeviceInfo& device, double flops_per_second);
Status forward_launch(const Launch& launch, const ForwardKernel& kernel);

const char* merge_supports(const Problem& problem, const DeviceInfo& device);
Config merge_configure(const Problem& problem, const DeviceInfo& device, Workspace& ledger);
double merge_cost(const Problem& problem, const DeviceInfo& device, const Config& config);
Status merge_launch(const Launch& launch);

}  // namespace runmax::cpu
