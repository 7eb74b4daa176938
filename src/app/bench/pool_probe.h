// How long stages of the thread pool take, with a number of threads and a load beside them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace switchyard::app {

// A piece of computation that takes a fixed number of instructions and touches no memory.
struct PoolTask {
  int64_t num_rounds = 0;  // 0 = nothing
};

// The task that takes `seconds` of CPU time here. Measures for some milliseconds.
PoolTask MakePoolTask(double seconds);

struct PoolTrial {
  int num_threads = 1;
  int64_t num_tasks = 16;  // of each stage
  PoolTask task;
  double seconds = 0.5;  // stages are run for this long, but at least `min_stages`
  int64_t min_stages = 20;
  int competitor_cpu = -1;  // where another process computes meanwhile; -1 = there is none
};

struct PoolTimes {
  std::vector<double> stage_seconds;  // one a stage, in order
  double total_seconds = 0;
  int num_active = 0;  // threads that work at the end
  int64_t num_late = 0;
  int64_t num_wakeups = 0;

  double stages_per_second() const;
};

// Runs the trial on a pool of its own, as the product sets it up.
// Errors: kInternal if a task did not run once in each stage or gave another result,
//         kUnavailable if the competing process cannot be started, and that of an interrupt.
absl::StatusOr<PoolTimes> MeasurePool(const PoolTrial& trial);

}  // namespace switchyard::app
