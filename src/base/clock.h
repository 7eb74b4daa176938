// Monotonic time, replaceable in tests.
#pragma once

#include <chrono>

namespace switchyard {

// A source of monotonic time. Objects that decide by time take a const Clock&, so that a test can
// move time by hand.
//
// Threads: any.
class Clock {
 public:
  virtual ~Clock() = default;

  // Seconds since a fixed but arbitrary moment; never less than an earlier call returned.
  virtual double NowSeconds() const = 0;
};

// The system's monotonic clock, which no one can set.
class MonotonicClock final : public Clock {
 public:
  double NowSeconds() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  // One instance for the whole process; it has no state.
  static const Clock& Get() {
    static const MonotonicClock clock;
    return clock;
  }
};

}  // namespace switchyard
