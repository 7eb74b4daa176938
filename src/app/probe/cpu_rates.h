// Rates of this host's CPU: memory, kernels, thread pool.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "switchyard/placement/v1/hardware_profile.pb.h"

#include "base/dtype.h"

namespace switchyard::app {

struct CpuRateProbe {
  std::vector<int> threads;       // counts to measure, ascending
  std::vector<DType> formats;     // of weights
  std::vector<int> num_rows;      // of activations
  int repetitions = 5;            // after one that warms up
  int64_t array_bytes = 0;        // whose reading is timed; 0 = as for bench membw
  double max_foreign_cpus = 0.1;  // what saw more is measured again, then a warning
};

// All formats with kernels; 1, 2, 4, ... up to all cores; 1 to 64 rows.
CpuRateProbe DefaultCpuRateProbe();

// Each adds its rows to `profile`, and a warning where others used the CPU meanwhile. Sums and
// products are checked.
//
// Errors: kResourceExhausted (memory), kInternal (a wrong result), that of an interrupt.
absl::Status MeasureMemoryReads(const CpuRateProbe& probe, placement::v1::HardwareProfile& profile);
absl::Status MeasureKernelRates(const CpuRateProbe& probe, placement::v1::HardwareProfile& profile);
absl::Status MeasureForkJoins(const CpuRateProbe& probe, placement::v1::HardwareProfile& profile);

}  // namespace switchyard::app
