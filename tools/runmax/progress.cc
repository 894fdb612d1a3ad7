#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

namespace runmax::cli {

Progress::Progress(std::string what, bool quiet) : what_(std::move(what)) {
  if (!quiet && ::isatty(STDERR_FILENO) == 1) thread_ = std::thread([this] { show(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void Progress::show() {
  std::unique_lock lock(mutex_);
  size_t shown = 0;
  for (int seconds = 1;; ++seconds) {
    if (ended_.wait_for(lock, std::chrono::seconds(1), [this] { return end_; })) break;
    const std::string line = fmt::format("{} ... {} s", what_, seconds);
    fmt::print(stderr, "\r{}", line);
    std::fflush(stderr);
    shown = line.size();
  }
  if (shown > 0) fmt::print(stderr, "\r{:{}}\r", "", shown);
  std::fflush(stderr);
}

}  // namespace runmax::cli
