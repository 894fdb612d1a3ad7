// How the command fails: one line "FIELD: what is wrong (value), what is allowed", and an exit
// code. Inside the tool an error is an exception; main() is the only place that prints one.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "runmax/runmax.h"

namespace runmax::cli {

inline constexpr int kExitDone = 0;
inline constexpr int kExitCheckFailed = 1;  // `runmax check` found a wrong result
inline constexpr int kExitBadInput = 2;     // bad usage, bad input, failed write, out of memory
inline constexpr int kExitUnsupported = 3;  // well-formed, but no kernel takes it
inline constexpr int kExitInterrupted = 130;

class Error : public std::exception {
 public:
  Error(int exit_code, std::string message) : exit_code_(exit_code), message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
  std::string message_;
};

// fail("--window", "left is {}, must be -1 (unbounded) or more", left)
template <class... Args>
[[noreturn]] void fail(std::string_view field, fmt::format_string<Args...> rule, Args&&... args) {
  throw Error(kExitBadInput,
              fmt::format("{}: {}", field, fmt::format(rule, std::forward<Args>(args)...)));
}

// Throws what the library said unless `status` is RUNMAX_OK.
void require(runmax_status status);

// Text from outside (paths, tensor names) as it may appear in a message: control characters and
// bytes that are not UTF-8 are escaped, so that one message stays one line, and long text is cut.
std::string printable(std::string_view text, size_t longest = 300);

// "[2, 8, 129, 64]"
template <class Range>
std::string shape_text(const Range& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace runmax::cli
