#include "device/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>
#include <memory>
#include <new>

namespace runmax {
namespace {

// How many forks lie between this process and the one that loaded the library.
std::atomic<uint32_t> fork_count{0};
[[maybe_unused]] const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); });

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}
void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Waits busily, but not long, for `ready`.
template <class Ready>
bool spin_until(Ready ready) {
  constexpr int64_t kSpinNs = 50'000;
  const int64_t deadline = now_ns() + kSpinNs;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      pause_cpu();
    }
  } while (now_ns() < deadline);
  return ready();
}

void run_serially(int64_t tasks, runmax_task task, void* context) {
  for (int64_t i = 0; i < tasks; ++i) task(context, i, 0);
}

}  // namespace

// A job is open while it may be joined. Workers join and leave through `gate`; the caller closes it
// when the task counter has run out and waits for those inside, not for those that still sleep.
struct ThreadPool::State {
  static constexpr uint32_t kOpen = uint32_t{1} << 31;  // the lower bits count workers inside

  struct Worker {
    State* state;
    int32_t slot;
    pthread_t thread;
  };

  State(int32_t threads, bool spin, uint32_t born)
      : workers(new (std::nothrow) Worker[threads - 1]),
        limit(workers ? threads - 1 : 0),
        spin(spin),
        born(born) {}

  // Joining is for the process that started the threads; in a fork's child they do not exist.
  ~State() {
    if (born != fork_count.load(std::memory_order_relaxed)) return;
    stop.store(true, std::memory_order_relaxed);
    epoch.fetch_add(1, std::memory_order_seq_cst);
    futex_wake(epoch, INT_MAX);
    for (int32_t i = 0; i < started; ++i) pthread_join(workers[i].thread, nullptr);
  }

  void start_workers(int64_t wanted);
  void run(int64_t count, runmax_task function, void* argument);
  void work(int32_t slot);
  void worker_loop(int32_t slot);
  static void* worker_main(void* self);

  // Written by the caller while nobody is inside, read by those who joined.
  runmax_task task = nullptr;
  void* context = nullptr;
  int64_t tasks = 0;

  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<uint32_t> gate{0};
  alignas(64) std::atomic<uint32_t> epoch{0};  // counts jobs; idle workers sleep on it
  std::atomic<int32_t> sleeping{0};
  std::atomic<bool> stop{false};
  std::atomic<bool> busy{false};  // guards what only the caller touches

  std::unique_ptr<Worker[]> workers;
  int32_t started = 0;
  int32_t limit;
  const bool spin;
  const uint32_t born;              // fork_count when made
  std::unique_ptr<State> previous;  // of a parent process; freed with the pool
};

void* ThreadPool::State::worker_main(void* self) {
  const Worker& worker = *static_cast<Worker*>(self);
  worker.state->worker_loop(worker.slot);
  return nullptr;
}

// Fewer threads than wanted is not an error: the work is the same.
void ThreadPool::State::start_workers(int64_t wanted) {
  const auto target = static_cast<int32_t>(std::min<int64_t>(wanted, limit));
  if (started >= target) return;
  sigset_t all, before;  // signals are for the caller's threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (started < target) {
    Worker& worker = workers[started];
    worker.state = this;
    worker.slot = started + 1;
    if (pthread_create(&worker.thread, nullptr, worker_main, &worker) != 0) {
      limit = started;
      break;
    }
    ++started;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ThreadPool::State::work(int32_t slot) {
  for (;;) {
    const int64_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= tasks) return;
    task(context, i, slot);
  }
}

void ThreadPool::State::run(int64_t count, runmax_task function, void* argument) {
  task = function;
  context = argument;
  tasks = count;
  next.store(0, std::memory_order_relaxed);
  gate.store(kOpen, std::memory_order_release);
  // A worker that goes to sleep either sees the new epoch or is seen here: both sides are seq_cst.
  epoch.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping.load(std::memory_order_seq_cst) > 0) {
    futex_wake(epoch, static_cast<int>(std::min<int64_t>(count - 1, INT_MAX)));
  }
  work(0);
  uint32_t inside = gate.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
  if (inside == 0) return;
  const auto empty = [&] { return (inside = gate.load(std::memory_order_acquire)) == 0; };
  if (spin && spin_until(empty)) return;
  while (!empty()) futex_wait(gate, inside);
}

void ThreadPool::State::worker_loop(int32_t slot) {
  uint32_t seen = 0;
  for (;;) {
    const auto new_job = [&] { return epoch.load(std::memory_order_acquire) != seen; };
    if (!(spin && spin_until(new_job))) {
      while (!new_job()) {
        sleeping.fetch_add(1, std::memory_order_seq_cst);
        futex_wait(epoch, seen);
        sleeping.fetch_sub(1, std::memory_order_relaxed);
      }
    }
    seen = epoch.load(std::memory_order_acquire);
    if (stop.load(std::memory_order_relaxed)) return;
    uint32_t state = gate.load(std::memory_order_relaxed);
    while ((state & kOpen) != 0) {
      if (!gate.compare_exchange_weak(state, state + 1, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
        continue;
      }
      work(slot);
      if (gate.fetch_sub(1, std::memory_order_acq_rel) == 1) futex_wake(gate, 1);
      break;
    }
  }
}

ThreadPool::ThreadPool(int32_t threads, bool spin) : threads_(threads), spin_(spin) {
  state_.store(new State(threads, spin, fork_count.load(std::memory_order_relaxed)));
}

ThreadPool::~ThreadPool() { delete state_.load(); }

// nullptr if a fork's child has no memory for a new state.
ThreadPool::State* ThreadPool::current_state() {
  const uint32_t now = fork_count.load(std::memory_order_relaxed);
  State* state = state_.load(std::memory_order_acquire);
  while (state->born != now) {
    State* fresh = new (std::nothrow) State(threads_, spin_, now);
    if (fresh == nullptr) return nullptr;
    fresh->previous.reset(state);
    if (state_.compare_exchange_strong(state, fresh, std::memory_order_acq_rel)) return fresh;
    // Another thread of the child was faster; `state` is its.
    [[maybe_unused]] State* not_ours = fresh->previous.release();
    delete fresh;
  }
  return state;
}

void ThreadPool::parallel_for(int64_t tasks, runmax_task task, void* context) {
  State* state = tasks > 1 && threads_ > 1 ? current_state() : nullptr;
  if (state == nullptr || state->busy.exchange(true, std::memory_order_acquire)) {
    run_serially(tasks, task, context);
    return;
  }
  state->start_workers(tasks - 1);
  if (state->started == 0) {
    run_serially(tasks, task, context);
  } else {
    state->run(tasks, task, context);
  }
  state->busy.store(false, std::memory_order_release);
}

}  // namespace runmax
