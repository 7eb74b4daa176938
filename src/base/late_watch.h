// Decides from the delays of a pool's stages whether a thread does more harm than good.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace switchyard {

// Counts how often each thread of a pool kept a stage open because something else had its CPU, and
// names the thread that should rest. Time is the caller's: there is no clock in here.
//
// Call order: for each stage OnLate() for the threads that were late, then OnStage().
// Threads:    one.
class LateWatch {
 public:
  using Duration = std::chrono::nanoseconds;

  explicit LateWatch(int num_threads) : threads_(num_threads) {}

  // `thread` kept a stage open for `lost` after all other work was done.
  void OnLate(int thread, Duration lost);

  // A stage of `num_active` threads has ended after `elapsed`. Returns the thread that should rest,
  // if there is one: late in more than one stage of a hundred, or as often within a tenth of a
  // second of stages, and the time that it cost is more than it can be worth. Counting starts anew
  // then.
  std::optional<int> OnStage(Duration elapsed, int num_active);

  int64_t num_late() const { return num_late_; }  // calls of OnLate(), since construction

 private:
  struct Thread {
    int num_late = 0;
    Duration lost{};
  };

  void Restart();

  std::vector<Thread> threads_;
  int num_stages_ = 0;
  bool any_late_ = false;
  Duration elapsed_{};
  int64_t num_late_ = 0;
};

// When a pool that has sent threads to rest should try all of them again: soon the first time, ever
// later while that does not help.
//
// Threads: one.
class RetryTimer {
 public:
  using Duration = std::chrono::nanoseconds;

  explicit RetryTimer(Duration first) : first_(first), delay_(first) {}

  // A thread goes to rest at `now`; returns when to try again.
  Duration OnRest(Duration now);

  // All threads work again from `now` on.
  void OnRetry(Duration now) { retried_ = now; }

 private:
  const Duration first_;
  Duration delay_;
  std::optional<Duration> retried_;
};

}  // namespace switchyard
