#include "device/cpu_count.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

namespace runmax {
namespace {

int32_t affinity_cpus() {
  // The kernel refuses a mask smaller than its own: double until it fits.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const bool fits = sched_getaffinity(0, bytes, set) == 0;
    const int count = fits ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) return count;
  }
  return static_cast<int32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

// cpu.max holds "quota period" or "max period", in microseconds.
int32_t quota_in(const std::string& folder, int32_t limit) {
  std::ifstream file(folder + "/cpu.max");
  int64_t quota = 0;
  int64_t period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return limit;
  const int64_t cpus = (quota + period - 1) / period;
  return static_cast<int32_t>(std::min<int64_t>(limit, cpus));
}

// The control group (version 2) of this process and all that enclose it.
int32_t quota_cpus(int32_t limit) {
  const std::string root = "/sys/fs/cgroup";
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    if (line.rfind("0::/", 0) != 0) continue;
    std::string path = line.substr(3);
    while (path.size() > 1) {
      limit = quota_in(root + path, limit);
      path.erase(path.rfind('/'));
    }
  }
  return quota_in(root, limit);  // in a container the group appears as the root
}

}  // namespace

int32_t available_cpus() { return std::max<int32_t>(1, quota_cpus(affinity_cpus())); }

}  // namespace runmax
