// Every environment variable that the library reads, and the only place that reads one.
#pragma once

#include <cstdint>
#include <span>

#include "core/status.h"

namespace runmax {

struct EnvironmentVariable {
  const char* name;
  const char* summary;
  const char* value;  // as read when the library was loaded; nullptr = not set
};

std::span<const EnvironmentVariable> environment();

// What the variables say. Zero where one is not set.
struct EnvironmentSettings {
  uint64_t isa = 0;     // RUNMAX_ISA: the one level that was named
  int32_t threads = 0;  // RUNMAX_THREADS
};
// A value that cannot be understood is an error that names the variable.
Result<EnvironmentSettings> parse_environment(std::span<const EnvironmentVariable> variables);

}  // namespace runmax
