// A clock that only a test moves.
#pragma once

#include <atomic>

#include "base/clock.h"

namespace switchyard::testing {

class ManualClock : public Clock {
 public:
  double NowSeconds() const override { return seconds_; }
  void Set(double seconds) { seconds_ = seconds; }

 private:
  std::atomic<double> seconds_ = 0;
};

}  // namespace switchyard::testing
