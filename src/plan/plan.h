// From a checked problem and a device to a plan: every kernel is asked, the cheapest is taken.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/workspace.h"
#include "device/device.h"
#include "registry/kernel_entry.h"

namespace runmax {

// One row of the kernel table and what it said.
struct Candidate {
  const KernelEntry* kernel = nullptr;
  std::string reason;  // empty = it takes the problem, at `seconds`
  double seconds = 0;
};

struct Plan {
  Problem problem;
  Device* device = nullptr;
  const KernelEntry* kernel = nullptr;
  Config config;
  Workspace ledger;
  double seconds = 0;  // predicted

  // Multi-line text for people, put together on first use.
  const char* explain() const;

  mutable std::once_flag explain_once;
  mutable std::string explain_text;
};

// Fills `plan`, or says why not: RUNMAX_UNSUPPORTED carries one line of reason per kernel.
Status make_plan(Problem problem, Device& device, Plan& plan);

// Every kernel of the device's kind, in table order.
std::vector<Candidate> candidates(const Problem& problem, const DeviceInfo& device);

// Counts behind `runmax explain`; args nullptr = from the shapes alone.
void count_work(const Plan& plan, const runmax_args* args, runmax_plan_info& info);

}  // namespace runmax
