// Time and peak memory of one piece of work, measured in a child process of its own so that nothing
// that ran before it counts.
#pragma once

#include <cstdint>
#include <functional>

namespace runmax::demo {

struct Measurement {
  double seconds = 0;         // median of the timed runs
  int64_t extra_bytes = 0;    // peak resident memory above what was there before the work
  int64_t process_bytes = 0;  // peak resident memory of the whole process
  char error[200] = {};       // "" = measured
};

// `prepare` runs in the child; it allocates and fills what both competitors need (the tensors) and
// returns `setup`, which allocates what only this one needs and returns the work to be timed.
// Exceptions in the child become `error`. The caller has no threads of its own yet.
using Work = std::function<void()>;
using Setup = std::function<Work()>;
Measurement measure_in_child(const std::function<Setup()>& prepare);

}  // namespace runmax::demo
