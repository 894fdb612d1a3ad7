#include "measure.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

namespace runmax::demo {
namespace {

constexpr double kTimedSeconds = 0.5;  // short work is repeated for this long ...
constexpr size_t kMaxRuns = 50;        // ... but not more often than this

int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

Measurement measure(const std::function<Setup()>& prepare) {
  Measurement result;
  try {
    const Setup setup = prepare();
    const int64_t before = peak_resident_bytes();
    const Work work = setup();
    std::vector<double> samples;
    double total = 0;
    while (samples.empty() || (total < kTimedSeconds && samples.size() < kMaxRuns)) {
      const auto begin = std::chrono::steady_clock::now();
      work();
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      samples.push_back(elapsed.count());
      total += elapsed.count();
    }
    std::nth_element(samples.begin(), samples.begin() + samples.size() / 2, samples.end());
    result.seconds = samples[samples.size() / 2];
    result.process_bytes = peak_resident_bytes();
    result.extra_bytes = result.process_bytes - before;
  } catch (const std::exception& failure) {
    std::snprintf(result.error, sizeof result.error, "%s", failure.what());
  }
  return result;
}

Measurement failed(const std::string& reason) {
  Measurement result;
  std::snprintf(result.error, sizeof result.error, "%s", reason.c_str());
  return result;
}

}  // namespace

Measurement measure_in_child(const std::function<Setup()>& prepare) {
  int ends[2];
  if (pipe(ends) != 0) return failed(std::string("pipe: ") + std::strerror(errno));
  const pid_t child = fork();
  if (child < 0) return failed(std::string("fork: ") + std::strerror(errno));
  if (child == 0) {
    close(ends[0]);
    const Measurement result = measure(prepare);
    const bool sent = write(ends[1], &result, sizeof result) == sizeof result;
    _exit(sent ? 0 : 1);
  }
  close(ends[1]);
  Measurement result;
  const bool received = read(ends[0], &result, sizeof result) == sizeof result;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    return failed("ended by signal " + std::to_string(WTERMSIG(status)) +
                  (WTERMSIG(status) == SIGKILL ? " (out of memory?)" : ""));
  }
  return received ? result : failed("the child process sent no result");
}

}  // namespace runmax::demo
