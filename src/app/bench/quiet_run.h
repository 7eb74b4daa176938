// Measuring again when another process was in the way.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"

#include "app/bench/foreign_cpu.h"
#include "base/status_macros.h"

namespace switchyard::app {

template <typename Samples>
struct QuietRun {
  Samples samples;
  std::optional<double> foreign_cpus;  // nothing if the kernel does not say
  bool is_quiet = false;               // whether others used little enough
  int num_discarded = 0;               // attempts
};

// Attempts until the result is what it is.
inline constexpr int kQuietAttempts = 3;

// Calls measure(), which returns StatusOr<Samples>, until others used at most `max_foreign_cpus`
// meanwhile, a few times at most; keeps the attempt with the least of it.
template <typename Samples, typename Measure>
absl::StatusOr<QuietRun<Samples>> MeasureQuietly(double max_foreign_cpus, const Measure& measure) {
  std::optional<QuietRun<Samples>> best;
  for (int attempt = 0; attempt < kQuietAttempts; ++attempt) {
    const ForeignCpuMeter meter;
    SWITCHYARD_ASSIGN_OR_RETURN(Samples samples, measure());
    QuietRun<Samples> run;
    run.samples = std::move(samples);
    run.foreign_cpus = meter.ForeignCpus();
    run.is_quiet = run.foreign_cpus.has_value() && *run.foreign_cpus <= max_foreign_cpus;
    if (!best || run.foreign_cpus < best->foreign_cpus) best = std::move(run);
    best->num_discarded = attempt;
    // A kernel that does not say will not say next time either.
    if (best->is_quiet || !best->foreign_cpus) break;
  }
  return std::move(*best);
}

// Adds "foreign_cpus" (null if unknown), "quiet" and "discarded" to a row.
template <typename Samples>
void AddQuiet(const QuietRun<Samples>& run, nlohmann::ordered_json& row) {
  row["foreign_cpus"] = run.foreign_cpus ? nlohmann::ordered_json(*run.foreign_cpus) : nullptr;
  row["quiet"] = run.is_quiet;
  row["discarded"] = run.num_discarded;
}

}  // namespace switchyard::app
