// Nanoseconds of the system's monotonic clock, which all processes of a host share.
#pragma once

#include <cstdint>
#include <limits>
#include <time.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace switchyard::comm {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

inline int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The moment `wait` after `start_ns`; kNever for an infinite wait.
inline int64_t DeadlineNs(int64_t start_ns, absl::Duration wait) {
  // A century: longer waits would overflow below.
  if (wait >= absl::Hours(876'000)) return kNever;
  return start_ns + absl::ToInt64Nanoseconds(wait);
}

// A deadline on the wall clock, as the monotonic clock will show it.
inline int64_t DeadlineNs(absl::Time deadline) {
  if (deadline == absl::InfiniteFuture()) return kNever;
  return DeadlineNs(NowNs(), deadline - absl::Now());
}

}  // namespace switchyard::comm
