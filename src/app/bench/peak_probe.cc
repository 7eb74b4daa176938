#include "app/bench/peak_probe.h"

#include <atomic>

#include "base/status.h"
#include "kernels/cpu/dot_peak.h"

namespace switchyard::app {

absl::StatusOr<PeakRate> MeasureDotPeak(TimedPool& pool, kernels::cpu::CpuLevel level) {
  if (level == kernels::cpu::CpuLevel::kScalar) return PeakRate{};
  // Half a millisecond to some milliseconds each at 200 to 1000 GOP/s.
  constexpr int64_t kTasksPerThread = 16;
  constexpr int64_t kOperationsPerTask = 500'000'000;
  std::atomic<int64_t> num_operations{0};
  std::atomic<bool> is_correct{true};
  const StageTime time = pool.Run(kTasksPerThread * pool.num_threads(), [&](int64_t, int) {
    const kernels::cpu::DotPeakRun run = kernels::cpu::RunDotPeak(level, kOperationsPerTask);
    num_operations.fetch_add(run.num_operations, std::memory_order_relaxed);
    if (!run.is_correct) is_correct.store(false, std::memory_order_relaxed);
  });
  if (!is_correct.load())
    return Internal("the byte products are wrong at level {}", CpuLevelName(level));
  const auto operations = static_cast<double>(num_operations.load());
  return PeakRate{operations / time.wall_seconds / 1e9, operations / time.cpu_seconds / 1e9};
}

}  // namespace switchyard::app
