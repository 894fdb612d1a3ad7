#include <cstdio>

#include "plan/plan.h"
#include "registry/kernel_table.h"

namespace runmax {

namespace {

const char* op_name(int32_t op) {
  switch (op) {
    case RUNMAX_FORWARD:
      return "forward";
    case RUNMAX_BACKWARD:
      return "backward";
    default:
      return "merge";
  }
}

// nullptr = the kernel takes the problem. No allocation: this runs for every row of the table.
const char* refusal(const KernelEntry& kernel, const Problem& problem, const DeviceInfo& device) {
  if (kernel.op != problem.raw.op) return "op: it computes another operation";
  if ((kernel.required_isa & device.isa) != kernel.required_isa) {
    return "isa: the device lacks its instruction set, or does not allow it";
  }
  if (!problem.kernel.empty() && problem.kernel != kernel.name) {
    return "kernel: another one is asked for by name";
  }
  return kernel.supports(problem, device);
}

Status check_kernel_name(const Problem& problem, const DeviceInfo& device) {
  std::string names;
  for (const KernelEntry& kernel : kernel_table()) {
    if (kernel.device_kind != device.kind || kernel.op != problem.raw.op) continue;
    if (problem.kernel == kernel.name) return Status::ok();
    names += names.empty() ? "" : ", ";
    names += kernel.name;
  }
  return Status::invalid("kernel", "is '" + problem.kernel + "', must be one of " + names);
}

Status no_kernel(const Problem& problem, const DeviceInfo& device) {
  std::string first = std::string("is ") + op_name(problem.raw.op) +
                      ", which no kernel of this device computes for this problem; by kernel:";
  for (const Candidate& c : candidates(problem, device)) {
    first += std::string("\n") + c.kernel->name + ": " + c.reason;
  }
  return Status::unsupported("op", first);
}

}  // namespace

std::vector<Candidate> candidates(const Problem& problem, const DeviceInfo& device) {
  std::vector<Candidate> all;
  for (const KernelEntry& kernel : kernel_table()) {
    if (kernel.device_kind != device.kind) continue;
    Candidate& c = all.emplace_back();
    c.kernel = &kernel;
    if (const char* reason = refusal(kernel, problem, device)) {
      c.reason = reason;
    } else {
      Workspace ledger;
      c.seconds = kernel.cost(problem, device, kernel.configure(problem, device, ledger));
    }
  }
  return all;
}

Status make_plan(Problem problem, Device& device, Plan& plan) {
  const DeviceInfo& info = device.info();
  if (!problem.kernel.empty()) RUNMAX_RETURN_IF_ERROR(check_kernel_name(problem, info));
  for (const KernelEntry& kernel : kernel_table()) {
    if (kernel.device_kind != info.kind || refusal(kernel, problem, info) != nullptr) continue;
    Workspace ledger;
    const Config config = kernel.configure(problem, info, ledger);
    const double seconds = kernel.cost(problem, info, config);
    if (plan.kernel != nullptr && seconds >= plan.seconds) continue;
    plan.kernel = &kernel;
    plan.config = config;
    plan.ledger = std::move(ledger);
    plan.seconds = seconds;
  }
  if (plan.kernel == nullptr) return no_kernel(problem, info);
  plan.problem = std::move(problem);
  plan.device = &device;
  return Status::ok();
}

}  // namespace runmax
