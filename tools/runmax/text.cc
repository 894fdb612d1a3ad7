#include "text.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "error.h"

namespace runmax::cli {
namespace {

template <size_t kCount>
std::string scaled(double value, double step, const char* const (&units)[kCount]) {
  size_t unit = 0;
  while (std::abs(value) >= step * 0.99995 && unit + 1 < kCount) {
    value /= step;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} {}", value, units[0])
                   : fmt::format("{:.1f} {}", value, units[unit]);
}

}  // namespace

std::string bytes_text(double bytes) {
  return scaled(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"});
}

std::string count_text(double count) {
  std::string text = scaled(count, 1000, {"", "k", "M", "G", "T", "P", "E"});
  if (text.back() == ' ') text.pop_back();
  return text;
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

void print(std::string_view text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written && errno != EPIPE) {
    fail("stdout", "cannot be written ({})", std::strerror(errno));
  }
}

void print_json(const nlohmann::ordered_json& json) {
  print(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace runmax::cli
