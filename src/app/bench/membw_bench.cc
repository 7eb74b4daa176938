// bench membw: how fast 1..n threads read memory.
#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "app/bench/bandwidth_probe.h"
#include "app/bench/bench_options.h"
#include "app/bench/foreign_cpu.h"
#include "app/bench/quiet_run.h"
#include "app/bench/spread.h"
#include "app/interrupt.h"
#include "base/cpu_topology.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

using kernels::cpu::CpuLevel;

struct MembwOptions {
  BenchOptions bench;
  BandwidthProbe::Options probe;
};

struct MembwSamples {
  std::vector<double> wall;  // bytes per second
  std::vector<double> cpu;
};

absl::StatusOr<MembwSamples> Measure(BandwidthProbe& probe, TimedPool& pool, CpuLevel level,
                                     int repetitions) {
  MembwSamples samples;
  for (int r = 0; r <= repetitions; ++r) {
    if (IsInterrupted()) return InterruptedStatus();
    SWITCHYARD_ASSIGN_OR_RETURN(const StageTime time, probe.Read(pool, level));
    if (r == 0) continue;  // warms up: threads, address translations, clocks
    samples.wall.push_back(static_cast<double>(probe.bytes()) / time.wall_seconds / 1e9);
    samples.cpu.push_back(static_cast<double>(probe.bytes()) / time.cpu_seconds / 1e9);
  }
  return samples;
}

absl::Status Membw(MembwOptions options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<CpuLevel> levels, LevelsOf(options.bench));
  std::vector<int> threads = options.bench.threads;
  if (threads.empty()) {
    threads.resize(DefaultCpuBudget().cores.size());
    std::iota(threads.begin(), threads.end(), 1);
  }
  TimedPool filler(*std::max_element(threads.begin(), threads.end()));
  SWITCHYARD_ASSIGN_OR_RETURN(BandwidthProbe probe, BandwidthProbe::Create(options.probe, filler));
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const CpuLevel level : levels) {
    for (const int num_threads : threads) {
      TimedPool pool(num_threads);
      SWITCHYARD_ASSIGN_OR_RETURN(const auto run,
                                  MeasureQuietly<MembwSamples>(options.bench.max_foreign_cpus, [&] {
                                    return Measure(probe, pool, level, options.bench.repetitions);
                                  }));
      rows.push_back({{"threads", num_threads},
                      {"cpu_level", CpuLevelName(level)},
                      {"bytes", probe.bytes()},
                      {"streams", probe.num_streams()},
                      {"gb_per_second", SpreadJson(run.samples.wall)},
                      {"gb_per_second_cpu", SpreadJson(run.samples.cpu)}});
      AddQuiet(run, rows.back());
    }
  }
  return WriteBenchReport(
      BenchReport("membw", std::move(rows)), options.bench,
      {"threads", "cpu_level", "bytes", "streams", "gb_per_second.median", "gb_per_second.min",
       "gb_per_second.max", "gb_per_second_cpu.median", "foreign_cpus", "quiet"});
}

}  // namespace

void AddMembwBench(CLI::App& bench, CommandBody& body) {
  CLI::App* command = bench.add_subcommand("membw", "Measure how fast threads read memory");
  auto options = std::make_shared<MembwOptions>();
  AddBenchFlags(*command, options->bench);
  AddBytesFlag(*command, "--bytes", options->probe.bytes, 1,
               "Size of the array (default: 1 GiB, or four times the last-level cache)");
  command->add_option("--streams", options->probe.num_streams, "Places that a thread reads in turn")
      ->check(CLI::IsMember({1, 2, 4, 8}))
      ->capture_default_str();
  command->add_flag("--huge-pages,!--no-huge-pages", options->probe.huge_pages,
                    "Ask for huge pages (default: on)");
  command->footer(
      "Rates are 10^9 bytes per second; *_cpu are by the threads' CPU time instead of the clock.\n"
      "Example:\n  switchyard bench membw -t 1,2 -o json");
  command->callback([&body, options] { body = [options] { return Membw(*options); }; });
}

}  // namespace switchyard::app
