// A pool of an explicit number of threads that run fork-join stages.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/cpu_topology.h"

namespace switchyard {

// Runs stages of independent tasks on a fixed set of threads; the caller is one of them.
//
// Waiting threads spin for a bounded time and then sleep. No more threads work at a time than there
// are CPUs: the others sleep until they are wanted, so that a pool of any size is as fast as the
// CPUs are. A thread that keeps stages waiting because something else has its CPU goes to rest for
// a while. Which thread runs a task is not defined, nor that two tasks run side by side; callers
// must not let results depend on it.
//
// Threads: ParallelFor(), PinCaller() and SetNumRunning() from one thread at a time; what counts,
//          from any.
class ThreadPool {
 public:
  struct Options {
    int num_threads = 1;  // the caller included; 1 starts no thread
    // Core of each thread (CoresForThreads()), or empty = not pinned, all in one domain. Entry 0 is
    // the caller's and is applied by PinCaller().
    std::vector<CpuCore> cores = {};
    // Threads that work at a time; 0 = one for each CPU that the creating thread may use.
    int num_running = 0;
    // A thread that keeps a stage open this much longer than its tasks take is late; 0 = do not
    // look, all threads always work.
    std::chrono::nanoseconds late_after = std::chrono::microseconds(200);
    // How long the first rest of a late thread lasts.
    std::chrono::nanoseconds retry_after = std::chrono::seconds(1);
  };

  explicit ThreadPool(const Options& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Pins the calling thread, which must be the one that will call ParallelFor(), to its core of the
  // options. Threads that it starts from then on inherit that.
  void PinCaller();

  // Has `num_running` threads work at a time from now on, as Options::num_running. The others
  // sleep. REQUIRES: 1 <= num_running <= num_threads().
  void SetNumRunning(int num_running);

  int num_threads() const { return num_threads_; }
  int num_running() const;

  // Threads that work now: num_running() less those that rest because they were late.
  int num_active() const;

  // Number of ParallelFor() calls that were divided into ranges, since construction.
  int64_t num_barriers() const { return num_barriers_; }

  // Since construction: threads woken by the kernel for a stage, and times that a thread was late.
  int64_t num_wakeups() const;
  int64_t num_late() const;

  // Calls body(task, thread) for each task in [0, num_tasks), thread in [0, num_threads()), and
  // returns when all have run. Each thread starts with a contiguous range and, when that is done,
  // takes single tasks from the others: first from those that share its cache, always from the one
  // that has most left. Allocates nothing.
  template <typename Body>
  void ParallelFor(int64_t num_tasks, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    Run(
        num_tasks,
        [](void* context, int64_t task, int thread) {
          (*static_cast<Plain*>(context))(task, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using TaskFunction = void (*)(void* context, int64_t task, int thread);
  struct Impl;

  void Run(int64_t num_tasks, TaskFunction function, void* context);

  int num_threads_;
  int64_t num_barriers_ = 0;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
