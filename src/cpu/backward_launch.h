// Plan-time and launch-time side of the backward kernel, the same for every ISA.
#pragma once

#include "cpu/backward_params.h"
#include "registry/kernel_entry.h"

namespace runmax::cpu {

const char* backward_supports(const Problem& problem, const DeviceInfo& device);
Config backward_configure(const Problem& problem, const DeviceInfo& device, Workspace& ledger,
                          const BackwardKernel& kernel);
double backward_cost(const Problem& problem, const DeviceInfo& device, double flops_per_second);
Status backward_launch(const Launch& launch, const BackwardKernel& kernel);

}  // namespace runmax::cpu
