#include "app/probe/probe.h"

#include <algorithm>
#include <ctime>
#include <fmt/format.h>
#include <set>
#include <utility>

#include "app/probe/host_facts.h"
#include "app/version.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "placement/hardware_profile.h"

namespace switchyard::app {
namespace {

using placement::v1::HardwareProfile;

std::string NowText() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

absl::Status AddCollectives(const ProbeOptions& options, const ProbeProgress& progress,
                            HardwareProfile& profile) {
  const auto cores = static_cast<int>(profile.host().cores());
  for (const comm::BackendKind backend : options.backends) {
    for (const int nranks : options.ranks) {
      // Workers have their share of the cores, or run with one thread each.
      for (const int threads : std::set<int>{1, std::max(1, cores / nranks)}) {
        CollectiveProbe probe;
        probe.backend = backend;
        probe.nranks = nranks;
        probe.threads_per_rank = threads;
        probe.sizes = DefaultCollectiveSizes();
        probe.seconds = options.collective_seconds;
        progress(fmt::format("collectives over {}, {} ranks of {} threads", comm::Name(backend),
                             nranks, threads));
        SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<placement::v1::Collective> rows,
                                    MeasureCollectives(probe));
        for (const placement::v1::Collective& row : rows) {
          if (row.wrong() > 0) {
            return Internal("results of a collective were wrong: {} over {} of {} ranks, {} bytes",
                            row.op(), row.backend(), row.nranks(), row.size_bytes());
          }
          *profile.add_collectives() = row;
        }
      }
    }
  }
  return absl::OkStatus();
}

std::string SpreadCells(const placement::v1::Spread& spread) {
  return fmt::format("{:.2f} | {:.2f} | {:.2f}", spread.median(), spread.min(), spread.max());
}

}  // namespace

absl::StatusOr<HardwareProfile> RunProbe(const ProbeOptions& options,
                                         const ProbeProgress& progress) {
  const double start = MonotonicClock::Get().NowSeconds();
  HardwareProfile profile;
  profile.set_schema_version(placement::kProfileSchemaVersion);
  profile.set_created_at(NowText());
  profile.set_tool_version(std::string(Version()));
  *profile.mutable_host() = ReadHostFacts();
  // First, while this thread may run on any core: the pools below pin it.
  SWITCHYARD_RETURN_IF_ERROR(AddCollectives(options, progress, profile));
  progress("forks and joins");
  SWITCHYARD_RETURN_IF_ERROR(MeasureForkJoins(options.cpu, profile));
  progress("memory");
  SWITCHYARD_RETURN_IF_ERROR(MeasureMemoryReads(options.cpu, profile));
  progress("kernels");
  SWITCHYARD_RETURN_IF_ERROR(MeasureKernelRates(options.cpu, profile));
  profile.set_duration_seconds(MonotonicClock::Get().NowSeconds() - start);
  return profile;
}

std::string ProfileText(const HardwareProfile& profile) {
  const placement::v1::Host& host = profile.host();
  std::string text = fmt::format("{}: {}, {} cores, {}; {}\n\n", host.hostname(), host.cpu_model(),
                                 host.cores(), host.cpu_level(), profile.created_at());
  text += "| memory read, threads | GB/s | min | max |\n| --- | --- | --- | --- |\n";
  for (const auto& row : profile.memory_reads()) {
    text += fmt::format("| {} | {} |\n", row.threads(), SpreadCells(row.gb_per_second()));
  }
  text +=
      "\n| format | threads | rows | GB/s of the file | min | max |\n"
      "| --- | --- | --- | --- | --- | --- |\n";
  for (const auto& row : profile.kernel_rates()) {
    text += fmt::format("| {} | {} | {} | {} |\n", row.format(), row.threads(), row.num_rows(),
                        SpreadCells(row.gb_per_second()));
  }
  text += "\n| fork and join, threads | us | min | max |\n| --- | --- | --- | --- |\n";
  for (const auto& row : profile.fork_joins()) {
    text += fmt::format("| {} | {} |\n", row.threads(), SpreadCells(row.us()));
  }
  text +=
      "\n| collective | backend | ranks | threads each | bytes | us | min | max | p99 |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const auto& row : profile.collectives()) {
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {:.2f} |\n", row.op(), row.backend(),
                        row.nranks(), row.threads_per_rank(), row.size_bytes(),
                        SpreadCells(row.us()), row.p99_us());
  }
  for (const auto& warning : profile.warnings()) {
    text += fmt::format("\nwarning: {}", warning.message());
  }
  return text + "\n";
}

}  // namespace switchyard::app
