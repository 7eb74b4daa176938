#include "app/probe/cpu_rates.h"

#include <algorithm>
#include <fmt/format.h>
#include <utility>

#include "app/bench/bandwidth_probe.h"
#include "app/bench/matrix_products.h"
#include "app/bench/pool_probe.h"
#include "app/bench/quiet_run.h"
#include "app/bench/spread.h"
#include "app/interrupt.h"
#include "base/cpu_topology.h"
#include "base/status_macros.h"
#include "kernels/cpu/cpu_features.h"

namespace switchyard::app {
namespace {

using placement::v1::HardwareProfile;

// Inner and outer width of the measured matrix: near those of experts and projections.
constexpr MatrixShape kShape = {1024, 2560};

// A set of matrices as large as this, or four times the last-level cache, comes from memory.
constexpr int64_t kLeastSetBytes = int64_t{256} << 20;
constexpr int64_t kMostSetBytes = int64_t{1} << 30;

void Set(const std::vector<double>& samples, placement::v1::Spread& out) {
  const Spread spread = SpreadOf(samples);
  out.set_median(spread.median);
  out.set_min(spread.min);
  out.set_max(spread.max);
  out.set_num_samples(static_cast<uint32_t>(samples.size()));
}

template <typename Samples>
void WarnIfNotQuiet(const QuietRun<Samples>& run, std::string_view what, HardwareProfile& profile) {
  if (run.is_quiet) return;
  placement::v1::ProfileWarning& warning = *profile.add_warnings();
  warning.set_code("not_quiet");
  warning.set_message(
      run.foreign_cpus.has_value()
          ? fmt::format("{}: other processes used {:.2f} CPUs meanwhile", what, *run.foreign_cpus)
          : fmt::format("{}: the kernel does not say what others used", what));
}

int MostThreads(const CpuRateProbe& probe) {
  return *std::max_element(probe.threads.begin(), probe.threads.end());
}

// 10^9 bytes a second, as stored in a file, of each repetition.
absl::StatusOr<std::vector<double>> ProductRates(const CpuRateProbe& probe,
                                                 const MatrixSet& matrices, ProductRun& products,
                                                 TimedPool& pool, int num_rows) {
  std::vector<double> rates;
  for (int r = 0; r <= probe.repetitions; ++r) {
    if (IsInterrupted()) return InterruptedStatus();
    const StageTime time = products.Run(pool, kernels::cpu::DetectCpuLevel(), num_rows, false);
    if (r == 0) continue;
    rates.push_back(static_cast<double>(matrices.count() * matrices.file_bytes()) /
                    time.wall_seconds / 1e9);
  }
  SWITCHYARD_RETURN_IF_ERROR(products.CheckLastRun(num_rows));
  return rates;
}

absl::Status MeasureFormat(const CpuRateProbe& probe, DType dtype, int64_t set_bytes,
                           HardwareProfile& profile) {
  // A plain evaluation of all rows would take longer than what is measured.
  constexpr int64_t kRowStep = 37;
  const int64_t matrix_bytes = kShape.rows * RowBytes(dtype, kShape.cols);
  const int64_t count = (set_bytes + matrix_bytes - 1) / matrix_bytes;
  SWITCHYARD_ASSIGN_OR_RETURN(const MatrixSet matrices,
                              MatrixSet::Create(dtype, kShape, count, MostThreads(probe)));
  const int most_rows = *std::max_element(probe.num_rows.begin(), probe.num_rows.end());
  SWITCHYARD_ASSIGN_OR_RETURN(const ActivationSet activations,
                              ActivationSet::Create(most_rows, kShape.cols));
  ProductRun products(matrices, activations, most_rows);
  for (const int num_threads : probe.threads) {
    TimedPool pool(num_threads);
    for (const int num_rows : probe.num_rows) {
      SWITCHYARD_RETURN_IF_ERROR(
          products.Check(kernels::cpu::DetectCpuLevel(), num_rows, kRowStep));
      SWITCHYARD_ASSIGN_OR_RETURN(const auto run,
                                  MeasureQuietly<std::vector<double>>(probe.max_foreign_cpus, [&] {
                                    return ProductRates(probe, matrices, products, pool, num_rows);
                                  }));
      placement::v1::KernelRate& row = *profile.add_kernel_rates();
      row.set_format(std::string(Traits(dtype).name));
      row.set_threads(static_cast<uint32_t>(num_threads));
      row.set_num_rows(static_cast<uint32_t>(num_rows));
      Set(run.samples, *row.mutable_gb_per_second());
      WarnIfNotQuiet(run,
                     fmt::format("kernel_rates {} {} threads {} rows", Traits(dtype).name,
                                 num_threads, num_rows),
                     profile);
    }
  }
  return absl::OkStatus();
}

}  // namespace

CpuRateProbe DefaultCpuRateProbe() {
  CpuRateProbe probe;
  const auto most = static_cast<int>(DefaultCpuBudget().cores.size());
  for (int count = 1; count < most; count *= 2) probe.threads.push_back(count);
  probe.threads.push_back(most);
  probe.formats = KernelFormats();
  probe.num_rows = {1, 4, 16, 64};
  return probe;
}

absl::Status MeasureMemoryReads(const CpuRateProbe& probe, HardwareProfile& profile) {
  TimedPool filler(MostThreads(probe));
  SWITCHYARD_ASSIGN_OR_RETURN(BandwidthProbe memory,
                              BandwidthProbe::Create({.bytes = probe.array_bytes}, filler));
  for (const int num_threads : probe.threads) {
    TimedPool pool(num_threads);
    SWITCHYARD_ASSIGN_OR_RETURN(
        const auto run,
        MeasureQuietly<std::vector<double>>(
            probe.max_foreign_cpus, [&]() -> absl::StatusOr<std::vector<double>> {
              std::vector<double> rates;
              for (int r = 0; r <= probe.repetitions; ++r) {
                if (IsInterrupted()) return InterruptedStatus();
                SWITCHYARD_ASSIGN_OR_RETURN(const StageTime time,
                                            memory.Read(pool, kernels::cpu::DetectCpuLevel()));
                if (r > 0) {
                  rates.push_back(static_cast<double>(memory.bytes()) / time.wall_seconds / 1e9);
                }
              }
              return rates;
            }));
    placement::v1::MemoryRead& row = *profile.add_memory_reads();
    row.set_threads(static_cast<uint32_t>(num_threads));
    Set(run.samples, *row.mutable_gb_per_second());
    WarnIfNotQuiet(run, fmt::format("memory_reads {} threads", num_threads), profile);
  }
  return absl::OkStatus();
}

absl::Status MeasureKernelRates(const CpuRateProbe& probe, HardwareProfile& profile) {
  const int64_t cache = ReadMachineDescription("/").last_level_cache_bytes();
  const int64_t set_bytes = std::clamp(4 * cache, kLeastSetBytes, kMostSetBytes);
  for (const DType dtype : probe.formats) {
    if (!FitsFormat(kShape, dtype)) continue;
    SWITCHYARD_RETURN_IF_ERROR(MeasureFormat(probe, dtype, set_bytes, profile));
  }
  return absl::OkStatus();
}

absl::Status MeasureForkJoins(const CpuRateProbe& probe, HardwareProfile& profile) {
  for (const int num_threads : probe.threads) {
    PoolTrial trial;
    trial.num_threads = num_threads;
    trial.seconds = 0.2;
    SWITCHYARD_ASSIGN_OR_RETURN(
        const auto run,
        MeasureQuietly<PoolTimes>(probe.max_foreign_cpus, [&] { return MeasurePool(trial); }));
    std::vector<double> us;
    for (const double seconds : run.samples.stage_seconds) us.push_back(1e6 * seconds);
    placement::v1::ForkJoin& row = *profile.add_fork_joins();
    row.set_threads(static_cast<uint32_t>(num_threads));
    Set(us, *row.mutable_us());
    WarnIfNotQuiet(run, fmt::format("fork_joins {} threads", num_threads), profile);
  }
  return absl::OkStatus();
}

}  // namespace switchyard::app
