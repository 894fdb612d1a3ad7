#include "device/environment.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>

#include "device/cpu_count.h"
#include "device/cpu_features.h"

namespace runmax {
namespace {

constexpr const char* kIsa = "RUNMAX_ISA";
constexpr const char* kThreads = "RUNMAX_THREADS";

// Copies outlive a later setenv() of the caller.
const char* read(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? nullptr : strdup(value);
}

Result<int32_t> parse_threads(const std::string& text) {
  int32_t threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  if (error != std::errc{} || end != text.data() + text.size() || threads < 1 ||
      threads > kMaxThreads) {
    return Status::invalid(kThreads, "is \"" + text + "\", must be an integer in [1, " +
                                         std::to_string(kMaxThreads) + "]");
  }
  return threads;
}

}  // namespace

std::span<const EnvironmentVariable> environment() {
  static const EnvironmentVariable variables[] = {
      {kIsa,
       "CPU devices use this instruction set and those below it: baseline, avx2, avx512, "
       "avx512_bf16, amx_bf16, neon",
       read(kIsa)},
      {kThreads, "threads of a CPU device that is created without max_threads", read(kThreads)},
  };
  return variables;
}

namespace {
// Read while the library is loaded, before the caller can have started threads that call setenv().
[[maybe_unused]] const auto read_at_load = environment();
}  // namespace

Result<EnvironmentSettings> parse_environment(std::span<const EnvironmentVariable> variables) {
  EnvironmentSettings settings;
  for (const EnvironmentVariable& variable : variables) {
    if (variable.value == nullptr) continue;
    const std::string text = variable.value;
    if (std::strcmp(variable.name, kIsa) == 0) {
      settings.isa = isa_from_name(text.c_str());
      if (settings.isa == 0) {
        return Status::invalid(kIsa, "is \"" + text + "\", must be one of " + isa_names(~0ull));
      }
    } else if (std::strcmp(variable.name, kThreads) == 0) {
      const Result<int32_t> threads = parse_threads(text);
      if (!threads.is_ok()) return threads.status();
      settings.threads = threads.value();
    }
  }
  return settings;
}

}  // namespace runmax
