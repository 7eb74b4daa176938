#include "app/bench/pool_probe.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <memory>
#include <thread>

#include "app/bench/competitor.h"
#include "app/interrupt.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/cpu_topology.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"

namespace switchyard::app {
namespace {

// A chain of dependent operations: its time depends on the clock of the core alone.
uint64_t RunTask(const PoolTask& task, uint64_t seed) {
  uint64_t value = seed;
  for (int64_t i = 0; i < task.num_rounds; ++i) {
    value = value * 6364136223846793005u + 1442695040888963407u;
  }
  return value;
}

double ThreadCpuSeconds() {
  timespec time{};
  SWITCHYARD_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// What one task of the pool has done so far; a line each, so that neighbours do not meet.
struct alignas(64) Record {
  int64_t num_runs = 0;
  uint64_t value = 0;
};

absl::StatusOr<PoolTimes> RunStages(ThreadPool& pool, const PoolTrial& trial) {
  const Clock& clock = MonotonicClock::Get();
  std::vector<Record> records(static_cast<size_t>(trial.num_tasks));
  PoolTimes times;
  const double start = clock.NowSeconds();
  double now = start;
  for (int64_t stage = 0; stage < trial.min_stages || now - start < trial.seconds; ++stage) {
    if (stage % 16 == 0 && IsInterrupted()) return InterruptedStatus();
    pool.ParallelFor(trial.num_tasks, [&](int64_t task, int) {
      Record& record = records[static_cast<size_t>(task)];
      ++record.num_runs;
      record.value = RunTask(trial.task, static_cast<uint64_t>(stage + task));
    });
    const double end = clock.NowSeconds();
    times.stage_seconds.push_back(end - now);
    now = end;
  }
  times.total_seconds = now - start;
  const auto num_stages = static_cast<int64_t>(times.stage_seconds.size());
  for (int64_t task = 0; task < trial.num_tasks; ++task) {
    const Record& record = records[static_cast<size_t>(task)];
    const uint64_t expected = RunTask(trial.task, static_cast<uint64_t>(num_stages - 1 + task));
    if (record.num_runs != num_stages || record.value != expected) {
      return Internal("a task of the pool ran wrongly: {}, wanted runs: {}, got: {}", task,
                      num_stages, record.num_runs);
    }
  }
  return times;
}

}  // namespace

PoolTask MakePoolTask(double seconds) {
  if (seconds <= 0) return {};
  constexpr int64_t kRounds = 1 << 20;  // about a millisecond
  constexpr int kTrials = 5;
  double least = std::numeric_limits<double>::infinity();
  volatile uint64_t sink = 1;
  for (int trial = 0; trial < kTrials; ++trial) {
    const double start = ThreadCpuSeconds();
    sink = RunTask({kRounds}, sink);
    least = std::min(least, ThreadCpuSeconds() - start);
  }
  return {std::max<int64_t>(1, static_cast<int64_t>(kRounds * seconds / least))};
}

double PoolTimes::stages_per_second() const {
  return static_cast<double>(stage_seconds.size()) / total_seconds;
}

absl::StatusOr<PoolTimes> MeasurePool(const PoolTrial& trial) {
  std::unique_ptr<Competitor> competitor;
  if (trial.competitor_cpu >= 0) {
    competitor = std::make_unique<Competitor>(trial.competitor_cpu);
    if (!competitor->is_running()) return Unavailable("no competing process can be started");
  }
  ThreadPool pool({.num_threads = trial.num_threads,
                   .cores = CoresForThreads(trial.num_threads, DefaultCpuBudget())});
  absl::StatusOr<PoolTimes> times = Internal("not measured");
  // A thread of its own, since the pool pins whoever calls it.
  std::thread([&] {
    pool.PinCaller();
    times = RunStages(pool, trial);
  }).join();
  SWITCHYARD_RETURN_IF_ERROR(times.status());
  times->num_active = pool.num_active();
  times->num_late = pool.num_late();
  times->num_wakeups = pool.num_wakeups();
  return times;
}

}  // namespace switchyard::app
