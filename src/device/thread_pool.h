// The device's own threads. One parallel_for at a time; workers park when idle. No allocation in
// parallel_for once it has started the threads that it needs.
#pragma once

#include <atomic>
#include <cstdint>

#include "runmax/runmax.h"

namespace runmax {

class ThreadPool {
 public:
  // `threads` counts the caller. `spin`: wait busily for up to 50 us before parking; unwise when
  // there are more threads than processors.
  ThreadPool(int32_t threads, bool spin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // See runmax_parallel_for: the caller has slot 0 and helps. A call while the pool is busy, from
  // inside a task or from another thread, runs serially on its caller; so does every call where no
  // thread can be started.
  void parallel_for(int64_t tasks, runmax_task task, void* context);

 private:
  struct State;
  State* current_state();

  const int32_t threads_;
  const bool spin_;
  std::atomic<State*> state_;  // replaced in the child of a fork, where the threads are gone
};

}  // namespace runmax
