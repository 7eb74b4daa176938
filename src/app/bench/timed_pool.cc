#include "app/bench/timed_pool.h"

#include <pthread.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/cpu_topology.h"

namespace switchyard::app {
namespace {

double SecondsOf(clockid_t clock) {
  timespec time{};
  SWITCHYARD_CHECK(clock_gettime(clock, &time) == 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

TimedPool::TimedPool(int num_threads)
    : pool_({.num_threads = num_threads,
             .cores = CoresForThreads(num_threads, DefaultCpuBudget()),
             .late_after = std::chrono::nanoseconds(0)}),
      clocks_(static_cast<size_t>(num_threads)) {}

void TimedPool::Register(int thread) {
  clockid_t clock;
  SWITCHYARD_CHECK(pthread_getcpuclockid(pthread_self(), &clock) == 0);
  clocks_[static_cast<size_t>(thread)] = {clock, SecondsOf(clock)};
}

void TimedPool::Begin() {
  clocks_[0] = {};  // the caller may be another thread each time
  Register(0);
  for (ThreadClock& clock : clocks_) {
    if (clock.id) clock.start_seconds = SecondsOf(*clock.id);
  }
  start_seconds_ = MonotonicClock::Get().NowSeconds();
}

StageTime TimedPool::End() {
  StageTime time;
  time.wall_seconds = MonotonicClock::Get().NowSeconds() - start_seconds_;
  for (const ThreadClock& clock : clocks_) {
    if (clock.id) time.cpu_seconds += SecondsOf(*clock.id) - clock.start_seconds;
  }
  time.cpu_seconds /= pool_.num_active();
  return time;
}

}  // namespace switchyard::app
