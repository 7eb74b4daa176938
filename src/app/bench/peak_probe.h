// Byte products at the speed of the arithmetic units: the limit that products of many rows, as in
// prefill, are compared with.
#pragma once

#include "absl/status/statusor.h"

#include "app/bench/timed_pool.h"
#include "kernels/cpu/cpu_features.h"

namespace switchyard::app {

struct PeakRate {
  double gop_per_second = 0;      // by the clock, all threads together
  double gop_per_second_cpu = 0;  // by CPU time
};

// Multiplies in registers for some milliseconds on every thread of `pool`. Zeros at the scalar
// level, which has no such instructions.
//
// Errors: kInternal if the sums are wrong.
absl::StatusOr<PeakRate> MeasureDotPeak(TimedPool& pool, kernels::cpu::CpuLevel level);

}  // namespace switchyard::app
