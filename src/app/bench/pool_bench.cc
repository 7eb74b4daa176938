// bench pool: what a stage of the thread pool costs, and what disturbs it.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "app/bench/bench_options.h"
#include "app/bench/pool_probe.h"
#include "app/bench/quiet_run.h"
#include "app/load/percentiles.h"
#include "base/cpu_topology.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

struct PoolOptions {
  BenchOptions bench;
  double seconds = 0.5;
};

constexpr double kTaskSeconds = 50e-6;

// 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: on a small machine up to eight, to show what more threads than
// CPUs cost.
std::vector<int> DefaultCounts() {
  const int most = std::max(8, static_cast<int>(AllowedCpus().size()));
  std::vector<int> counts = {1};
  for (int low = 2; low <= most; low *= 2) {
    counts.push_back(low);
    if (low + low / 2 <= most) counts.push_back(low + low / 2);
  }
  return counts;
}

struct Measured {
  PoolTrial trial;
  QuietRun<PoolTimes> run;
};

nlohmann::ordered_json Row(const Measured& row, double best) {
  const PoolTimes& times = row.run.samples;
  const std::vector<double>& seconds = times.stage_seconds;
  const auto num_stages = static_cast<double>(seconds.size());
  const double per_second = times.stages_per_second();
  nlohmann::ordered_json json = {
      {"threads", row.trial.num_threads},
      {"task_us", row.trial.task.num_rounds > 0 ? 1e6 * kTaskSeconds : 0},
      {"tasks", row.trial.num_tasks},
      {"competitor", row.trial.competitor_cpu >= 0},
      {"stages", seconds.size()},
      {"stage_us",
       {{"median", 1e6 * Percentile(seconds, 50)},
        {"p99", 1e6 * Percentile(seconds, 99)},
        {"max", 1e6 * Percentile(seconds, 100)},
        {"mean", 1e6 * times.total_seconds / num_stages}}},
      {"stages_per_second", per_second},
      {"of_best", per_second / best},
      {"active", times.num_active},
      {"late_percent", 100 * static_cast<double>(times.num_late) / num_stages},
      {"wakeups_per_stage", static_cast<double>(times.num_wakeups) / num_stages}};
  AddQuiet(row.run, json);
  return json;
}

absl::Status Pool(PoolOptions options) {
  std::vector<int> counts = options.bench.threads;
  if (counts.empty()) counts = DefaultCounts();
  const std::vector<int> cpus = AllowedCpus();
  // The same work for every count; two tasks for each thread that can run.
  const int most =
      std::min(*std::max_element(counts.begin(), counts.end()), static_cast<int>(cpus.size()));
  PoolTrial trial;
  trial.seconds = options.seconds;
  trial.num_tasks = std::max(16, 2 * most);
  std::vector<Measured> rows;
  std::map<int64_t, double> best;  // stages a second without competitor, by rounds of the task
  for (const PoolTask task : {PoolTask(), MakePoolTask(kTaskSeconds)}) {
    for (const bool competes : {false, true}) {
      for (const int num_threads : counts) {
        trial.task = task;
        trial.competitor_cpu = competes ? cpus.back() : -1;
        trial.num_threads = num_threads;
        // The competitor is an other too.
        const double most_foreign = options.bench.max_foreign_cpus + (competes ? 1 : 0);
        SWITCHYARD_ASSIGN_OR_RETURN(
            auto run, MeasureQuietly<PoolTimes>(most_foreign, [&] { return MeasurePool(trial); }));
        double& most_stages = best[task.num_rounds];
        if (!competes) most_stages = std::max(most_stages, run.samples.stages_per_second());
        rows.push_back({trial, std::move(run)});
      }
    }
  }
  nlohmann::ordered_json report = nlohmann::ordered_json::array();
  for (const Measured& row : rows) report.push_back(Row(row, best[row.trial.task.num_rounds]));
  return WriteBenchReport(
      BenchReport("pool", std::move(report)), options.bench,
      {"threads", "task_us", "tasks", "competitor", "stages", "stage_us.median", "stage_us.p99",
       "stage_us.mean", "of_best", "active", "late_percent", "wakeups_per_stage", "foreign_cpus"});
}

}  // namespace

void AddPoolBench(CLI::App& bench, CommandBody& body) {
  CLI::App* command = bench.add_subcommand("pool", "Measure what a stage of the thread pool costs");
  auto options = std::make_shared<PoolOptions>();
  AddCountsFlag(*command, "-t,--threads", options->bench.threads,
                "Threads; a list (default: 1,2,3,4,6,8,... up to the CPUs, at least 8)")
      ->check(CLI::Range(1, 1024))
      ->envname("SWITCHYARD_THREADS");
  command->add_option("--seconds", options->seconds, "Time for each line")
      ->check(CLI::Range(0.0, 60.0))
      ->capture_default_str();
  command
      ->add_option("--max-foreign", options->bench.max_foreign_cpus,
                   "CPUs that others, but for the competitor, may use meanwhile; what saw more is\n"
                   "measured again, or marked")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  AddOutputOption(*command, options->bench.output, {"md", "json"});
  command->footer(
      "Stages of empty tasks and of tasks that compute for 50 us, alone and while another process\n"
      "computes on the last CPU. of_best: stages a second, by those of the best count alone.\n"
      "Example:\n  switchyard bench pool -t 1,2,4,8 -o json");
  command->callback([&body, options] { body = [options] { return Pool(*options); }; });
}

}  // namespace switchyard::app
