// A thread pool whose stages are timed: by the wall clock and by the CPU time of its threads.
#pragma once

#include <ctime>
#include <optional>
#include <vector>

#include "base/thread_pool.h"

namespace switchyard::app {

struct StageTime {
  double wall_seconds = 0;
  // Mean over the threads that work: what the stage takes while each of them keeps its CPU. Other
  // tenants of the machine stretch the wall time only.
  double cpu_seconds = 0;
};

// The product's pool, pinned as the product pins it, but none of its threads is sent to rest for
// being late.
//
// Threads: Run() from one thread at a time.
class TimedPool {
 public:
  explicit TimedPool(int num_threads);

  int num_threads() const { return pool_.num_threads(); }
  ThreadPool& pool() { return pool_; }

  // Runs one stage, as ThreadPool::ParallelFor(). A stage should take milliseconds: the time that
  // threads spend looking for more work at its end counts.
  template <typename Body>
  StageTime Run(int64_t num_tasks, const Body& body) {
    Begin();
    pool_.ParallelFor(num_tasks, [&](int64_t task, int thread) {
      if (!clocks_[static_cast<size_t>(thread)].id) Register(thread);
      body(task, thread);
    });
    return End();
  }

 private:
  // A thread makes its clock known with its first task.
  struct ThreadClock {
    std::optional<clockid_t> id;
    double start_seconds = 0;
  };

  void Begin();
  StageTime End();
  void Register(int thread);

  ThreadPool pool_;
  std::vector<ThreadClock> clocks_;
  double start_seconds_ = 0;
};

}  // namespace switchyard::app
