#include "device/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "tests/unit/allocations.h"

namespace runmax {
namespace {

// Counts how often each task ran, and whether two running tasks ever shared a slot.
struct Recorder {
  Recorder(int64_t tasks, int32_t slots) : runs(tasks), in_slot(slots) {}

  static void task(void* self, int64_t i, int32_t slot) {
    auto& r = *static_cast<Recorder*>(self);
    if (slot < 0 || slot >= static_cast<int32_t>(r.in_slot.size())) {
      r.bad_slot = true;
      return;
    }
    if (r.in_slot[slot].exchange(true)) r.shared_slot = true;
    if (r.pause_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(r.pause_us));
    r.runs[i].fetch_add(1);
    r.in_slot[slot] = false;
  }

  void expect_each_once() const {
    EXPECT_FALSE(bad_slot);
    EXPECT_FALSE(shared_slot);
    for (const auto& count : runs) ASSERT_EQ(count, 1);
  }

  std::vector<std::atomic<int>> runs;
  std::vector<std::atomic<bool>> in_slot;
  std::atomic<bool> bad_slot{false};
  std::atomic<bool> shared_slot{false};
  int pause_us = 0;
};

TEST(ThreadPool, RunsEveryTaskOnceInItsOwnSlot) {
  for (const bool spin : {false, true}) {
    for (const int32_t threads : {1, 2, 3, 7, 16}) {
      ThreadPool pool(threads, spin);
      for (const int64_t tasks : {0, 1, 2, 3, 16, 17, 1000}) {
        Recorder recorder(tasks, threads);
        pool.parallel_for(tasks, Recorder::task, &recorder);
        recorder.expect_each_once();
      }
    }
  }
}

TEST(ThreadPool, ManyShortJobs) {
  ThreadPool pool(4, true);
  for (int job = 0; job < 3000; ++job) {
    Recorder recorder(job % 9, 4);
    pool.parallel_for(job % 9, Recorder::task, &recorder);
    recorder.expect_each_once();
  }
}

// Tasks that wait until `wanted` of them run at once, but not for ever.
struct Meeting {
  explicit Meeting(int wanted) : wanted(wanted) {}

  static void task(void* self, int64_t, int32_t) {
    auto& m = *static_cast<Meeting*>(self);
    if (m.inside.fetch_add(1) + 1 == m.wanted) m.met = true;
    for (int i = 0; i < 10'000 && !m.met; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    m.inside.fetch_sub(1);
  }

  const int wanted;
  std::atomic<int> inside{0};
  std::atomic<bool> met{false};
};

TEST(ThreadPool, UsesSeveralThreads) {
  ThreadPool pool(4, false);
  Meeting meeting(4);
  pool.parallel_for(4, Meeting::task, &meeting);
  EXPECT_TRUE(meeting.met);
}

TEST(ThreadPool, CallerWaitsForTheSlowestTask) {
  for (const bool spin : {false, true}) {
    ThreadPool pool(3, spin);
    for (int job = 0; job < 5; ++job) {
      struct Slow {
        std::thread::id caller = std::this_thread::get_id();
        std::atomic<int> done{0};
      } slow;
      pool.parallel_for(
          6,
          [](void* self, int64_t, int32_t) {
            auto& s = *static_cast<Slow*>(self);
            if (std::this_thread::get_id() != s.caller) {
              std::this_thread::sleep_for(std::chrono::milliseconds(5));
            } else {
              std::this_thread::sleep_for(std::chrono::microseconds(500));
            }
            s.done.fetch_add(1);
          },
          &slow);
      ASSERT_EQ(slow.done, 6);
    }
  }
}

TEST(ThreadPool, WorkersSleepAndWakeAgain) {
  ThreadPool pool(3, true);
  for (int job = 0; job < 5; ++job) {
    Recorder recorder(50, 3);
    recorder.pause_us = 100;
    pool.parallel_for(50, Recorder::task, &recorder);
    recorder.expect_each_once();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // long past the spin
  }
}

TEST(ThreadPool, NestedCallRunsSeriallyInSlotZero) {
  ThreadPool pool(4, false);
  struct Nested {
    ThreadPool* pool;
    std::atomic<int> inner{0};
    std::atomic<bool> other_slot{false};
  } nested{&pool};
  pool.parallel_for(
      8,
      [](void* self, int64_t, int32_t) {
        const std::thread::id caller = std::this_thread::get_id();
        struct Inner {
          Nested* nested;
          std::thread::id caller;
        } inner{static_cast<Nested*>(self), caller};
        inner.nested->pool->parallel_for(
            10,
            [](void* argument, int64_t, int32_t slot) {
              auto& i = *static_cast<Inner*>(argument);
              if (slot != 0 || std::this_thread::get_id() != i.caller) i.nested->other_slot = true;
              i.nested->inner.fetch_add(1);
            },
            &inner);
      },
      &nested);
  EXPECT_EQ(nested.inner, 80);
  EXPECT_FALSE(nested.other_slot);
}

TEST(ThreadPool, ConcurrentCallersAllFinish) {
  ThreadPool pool(4, true);
  std::vector<std::thread> callers;
  std::atomic<int> failures{0};
  for (int c = 0; c < 6; ++c) {
    callers.emplace_back([&pool, &failures] {
      for (int job = 0; job < 200; ++job) {
        Recorder recorder(40, 4);
        pool.parallel_for(40, Recorder::task, &recorder);
        bool good = !recorder.bad_slot && !recorder.shared_slot;
        for (const auto& count : recorder.runs) good &= count == 1;
        if (!good) failures.fetch_add(1);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures, 0);
}

TEST(ThreadPool, ResultsAreVisibleToTheCaller) {
  ThreadPool pool(4, true);
  std::vector<int64_t> plain(1000);  // no atomics: tsan watches the hand-over
  for (int job = 1; job <= 200; ++job) {
    pool.parallel_for(
        static_cast<int64_t>(plain.size()),
        [](void* self, int64_t i, int32_t) { (*static_cast<std::vector<int64_t>*>(self))[i] += i; },
        &plain);
    for (size_t i = 0; i < plain.size(); i += 37) {
      ASSERT_EQ(plain[i], job * static_cast<int64_t>(i));
    }
  }
}

#if !defined(__SANITIZE_THREAD__)  // tsan cannot follow threads that start after a fork
// The child has the parent's memory but none of its threads: its first call makes new ones.
TEST(ThreadPool, ForkedChildHasThreadsOfItsOwn) {
  auto pool = std::make_unique<ThreadPool>(3, false);
  Recorder before(100, 3);
  pool->parallel_for(100, Recorder::task, &before);
  before.expect_each_once();

  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Meeting meeting(3);
    pool->parallel_for(3, Meeting::task, &meeting);
    bool good = meeting.met;
    Recorder recorder(100, 3);
    pool->parallel_for(100, Recorder::task, &recorder);
    for (const auto& count : recorder.runs) good &= count == 1;
    pool.reset();
    _exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;

  Recorder after(100, 3);  // the parent's threads are still there
  pool->parallel_for(100, Recorder::task, &after);
  after.expect_each_once();
}
#endif

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need address space
// Room for few stacks or none: fewer threads, the same work.
TEST(ThreadPool, RunsWithFewerThreadsThanWanted) {
  for (const size_t room : {size_t{1} << 20, size_t{24} << 20}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ThreadPool pool(16, false);
      Recorder recorder(100, 16);
      recorder.pause_us = 100;
      std::ifstream statm("/proc/self/statm");
      size_t pages = 0;
      statm >> pages;
      const size_t now = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
      const rlimit limit{now + room, now + room};
      if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
      for (int i = 0; i < 3; ++i) pool.parallel_for(100, Recorder::task, &recorder);
      bool good = !recorder.bad_slot && !recorder.shared_slot;
      for (const auto& count : recorder.runs) good &= count == 3;
      _exit(good ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}
#endif

TEST(ThreadPool, AllocatesNothingOnceItsThreadsRun) {
  ThreadPool pool(3, false);
  std::atomic<int> sum{0};
  const auto add = [](void* self, int64_t, int32_t) {
    static_cast<std::atomic<int>*>(self)->fetch_add(1);
  };
  pool.parallel_for(10, add, &sum);
  const int64_t before = testing::allocations();
  pool.parallel_for(1000, add, &sum);
  EXPECT_EQ(testing::allocations(), before);
  EXPECT_EQ(sum, 1010);
}

TEST(ThreadPool, UnusedPoolsComeAndGo) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(16, true);
    if (i % 2 == 0) continue;
    Recorder recorder(3, 16);
    pool.parallel_for(3, Recorder::task, &recorder);
    recorder.expect_each_once();
  }
}

}  // namespace
}  // namespace runmax
