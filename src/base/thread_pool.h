// A pool of an explicit number of threads that run fork-join stages.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace switchyard {

// Runs stages of independent tasks on a fixed set of threads; the caller is one of them.
//
// Waiting workers spin for a bounded time and then sleep, so that a pool larger than the number of
// free CPUs slows down but never collapses. Which thread runs a task is not defined; callers must
// not let results depend on it.
//
// Threads: ParallelFor() from one thread at a time.
class ThreadPool {
 public:
  struct Options {
    int num_threads = 1;  // the caller included; 1 starts no thread
    // CPU of each thread (CpusForThreads()), or empty = not pinned. Entry 0 is the caller's and is
    // not applied.
    std::vector<int> cpus = {};
  };

  explicit ThreadPool(const Options& options);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Number of ParallelFor() calls that involved more than one thread, since construction.
  int64_t num_barriers() const { return num_barriers_; }

  // Calls body(task, thread) for each task in [0, num_tasks), thread in [0, num_threads()), and
  // returns when all have run. Each thread starts with a contiguous range and, when that is done,
  // takes single tasks from the others. Allocates nothing.
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
