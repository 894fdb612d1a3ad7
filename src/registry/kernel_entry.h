// The narrow waist between planner and backends. A kernel exists if and only if its backend's table
// has a row of this type; planner, sweep tests, bench, `runmax list` and the docs read the tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/status.h"
#include "core/workspace.h"
#include "device/device.h"
#include "runmax/runmax.h"

namespace runmax {

// What a kernel decided for one problem on one device. Plain numbers, printed by explain.
struct Config {
  int32_t q_tile = 0;
  int32_t kv_tile = 0;
  int32_t num_splits = 1;
  int64_t split_len = 0;        // keys of one split (the last may be shorter); 0 = no split
  int64_t fast_tile_bytes = 0;  // working set of one tile ...
  const char* fast_level = "";  // ... and where it is meant to live
};

// Everything a launch may touch.
struct Launch {
  const Problem& problem;
  const Config& config;
  const Workspace& ledger;
  const runmax_args& args;
  std::byte* workspace;
  const Device& device;
  void* stream;
};

struct KernelEntry {
  const char* name;
  const char* summary;
  int32_t device_kind;
  int32_t op;
  uint64_t required_isa;
  // nullptr = yes, else the reason, a static string "FIELD: ...". One condition, one reason.
  const char* (*supports)(const Problem&, const DeviceInfo&);
  // Chooses tiles and books workspace. Called only after supports() said yes.
  Config (*configure)(const Problem&, const DeviceInfo&, Workspace&);
  // Predicted seconds; the planner takes the cheapest, ties go to the earlier row.
  double (*cost)(const Problem&, const DeviceInfo&, const Config&);
  // Runs. Allocates nothing, does not fail for what plan time could know.
  Status (*launch)(const Launch&);
};

}  // namespace runmax
