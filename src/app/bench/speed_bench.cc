#include "app/bench/speed_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "app/bench/model_check.h"
#include "app/engine_setup.h"
#include "app/exit_code.h"
#include "app/loaded_model.h"
#include "app/placement_options.h"
#include "app/step_driver.h"
#include "app/terminal.h"
#include "app/version.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "model/model_summary.h"
#include "placement/placement.h"

namespace switchyard::app {
namespace {

// One line of the table: either a prompt of `num_prompt` or a generation of `num_gen` tokens, after
// `depth` tokens that are not timed.
struct BenchCase {
  int num_prompt = 0;
  int num_gen = 0;
  int depth = 0;
};

struct BenchRow {
  BenchCase test;
  int num_threads = 0;
  std::string device;
  int64_t barriers = 0;                    // fork-joins of the last repetition
  std::vector<double> samples_per_second;  // one a repetition

  double mean() const {
    return std::accumulate(samples_per_second.begin(), samples_per_second.end(), 0.0) /
           static_cast<double>(samples_per_second.size());
  }
  double deviation() const {
    if (samples_per_second.size() < 2) return 0;
    double squares = 0;
    for (double s : samples_per_second) squares += (s - mean()) * (s - mean());
    return std::sqrt(squares / static_cast<double>(samples_per_second.size() - 1));
  }
};

// Runs one repetition and returns tokens per second.
absl::StatusOr<double> RunCase(StepDriver& driver, const BenchCase& test, int chunk_tokens,
                               int vocab_size) {
  driver.Reset();
  // A generation continues from a token, so one more is computed in front of it.
  const int untimed = test.depth + (test.num_gen > 0 ? 1 : 0);
  SWITCHYARD_RETURN_IF_ERROR(driver.Prefill(BenchTokens(0, untimed, vocab_size), chunk_tokens,
                                            /*sample=*/test.num_gen > 0, nullptr));
  const Clock& clock = MonotonicClock::Get();
  const double start = clock.NowSeconds();
  if (test.num_gen > 0) {
    SWITCHYARD_RETURN_IF_ERROR(driver.Decode(test.num_gen).status());
  } else {
    SWITCHYARD_RETURN_IF_ERROR(driver.Prefill(BenchTokens(test.depth, test.num_prompt, vocab_size),
                                              chunk_tokens, /*sample=*/true, nullptr));
  }
  return (test.num_prompt + test.num_gen) / (clock.NowSeconds() - start);
}

std::vector<BenchCase> Cases(const SpeedBenchOptions& options) {
  std::vector<BenchCase> cases;
  for (int depth : options.depth) {
    for (int n : options.num_prompt) {
      if (n > 0) cases.push_back({n, 0, depth});
    }
    for (int n : options.num_gen) {
      if (n > 0) cases.push_back({0, n, depth});
    }
  }
  return cases;
}

absl::Status RunThreads(const LoadedModel& model, ModelOptions options,
                        const std::vector<BenchCase>& cases, int repetitions,
                        std::vector<BenchRow>& rows) {
  int64_t longest = 0;
  for (const BenchCase& test : cases) {
    // A generation starts from one more token and from the one that was sampled after it.
    longest = std::max<int64_t>(
        longest, test.depth + std::max(test.num_prompt, test.num_gen > 0 ? test.num_gen + 2 : 0));
  }
  if (longest > model.spec.context_length) {
    return WithExitCode(InvalidArgument("the longest test needs {} tokens, the context has {}",
                                        longest, model.spec.context_length),
                        ExitCode::kUsage);
  }
  options.context = longest;
  SWITCHYARD_ASSIGN_OR_RETURN(const worker::WorkerOptions worker_options,
                              MakeWorkerOptions(model, options));
  std::optional<StepDriver> driver;
  std::string device;
  if (options.num_workers > 0) {
    SWITCHYARD_ASSIGN_OR_RETURN(const auto placement,
                                PlacementFor(model.spec, options, options.num_workers));
    device = fmt::format("{} ({})", options.device, placement::Describe(placement));
    SWITCHYARD_ASSIGN_OR_RETURN(auto group, StartWorker(model, options, worker_options));
    driver.emplace(std::move(group), worker_options);
  } else {
    SWITCHYARD_ASSIGN_OR_RETURN(auto worker, LoadWorker(model, options, worker_options));
    device = worker->backend().Describe();
    driver.emplace(std::move(worker), worker_options);
  }
  for (const BenchCase& test : cases) {
    BenchRow row;
    row.test = test;
    row.num_threads = options.num_threads > 0 ? options.num_threads : DefaultNumThreads();
    row.device = device;
    // One repetition to warm up: caches, pages of the weights, clocks.
    for (int r = 0; r <= repetitions; ++r) {
      const auto num_barriers = [&] {
        return driver->is_local() ? driver->worker().backend().num_barriers() : 0;
      };
      const int64_t barriers = num_barriers();
      SWITCHYARD_ASSIGN_OR_RETURN(const double rate, RunCase(*driver, test, options.chunk_tokens,
                                                             model.tokenizer.vocab_size()));
      if (r > 0) row.samples_per_second.push_back(rate);
      row.barriers = num_barriers() - barriers;
    }
    rows.push_back(std::move(row));
  }
  return absl::OkStatus();
}

std::string TestName(const BenchCase& test) {
  std::string name =
      test.num_gen > 0 ? fmt::format("tg{}", test.num_gen) : fmt::format("pp{}", test.num_prompt);
  if (test.depth > 0) name += fmt::format(" @ d{}", test.depth);
  return name;
}

std::string Json(const std::vector<BenchRow>& rows, const LoadedModel& model,
                 const SpeedBenchOptions& options) {
  const model::ModelSummary summary = model::Summarize(model.spec);
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const BenchRow& row : rows) {
    json.push_back(
        {{"model", std::filesystem::path(model.file.path(0)).filename().string()},
         {"model_size", summary.bytes},
         {"active_bytes", summary.dense_bytes_per_token + summary.expert_bytes_per_token},
         {"version", Version()},
         {"device", row.device},
         {"n_threads", row.num_threads},
         {"n_batch", options.model.chunk_tokens},
         {"type_k", options.model.kv_type},
         {"type_v", options.model.kv_type},
         {"n_prompt", row.test.num_prompt},
         {"n_gen", row.test.num_gen},
         {"n_depth", row.test.depth},
         {"n_barriers", row.barriers},
         {"avg_ts", row.mean()},
         {"stddev_ts", row.deviation()},
         {"samples_ts", row.samples_per_second}});
  }
  return json.dump(1) + "\n";
}

std::string Table(const std::vector<BenchRow>& rows, const LoadedModel& model) {
  const std::string name = std::filesystem::path(model.file.path(0)).filename().string();
  std::string out = "| model | size | device | threads | test | t/s |\n";
  out += "| --- | ---: | --- | ---: | ---: | ---: |\n";
  for (const BenchRow& row : rows) {
    out +=
        fmt::format("| {} | {} | {} | {} | {} | {:.2f} ± {:.2f} |\n", name,
                    FormatBytes(static_cast<double>(model::Summarize(model.spec).bytes)),
                    row.device, row.num_threads, TestName(row.test), row.mean(), row.deviation());
  }
  return out;
}

std::string Csv(const std::vector<BenchRow>& rows, const LoadedModel& model) {
  std::string out = "model,device,n_threads,n_prompt,n_gen,n_depth,avg_ts,stddev_ts\n";
  for (const BenchRow& row : rows) {
    out += fmt::format("\"{}\",\"{}\",{},{},{},{},{:.6f},{:.6f}\n",
                       std::filesystem::path(model.file.path(0)).filename().string(), row.device,
                       row.num_threads, row.test.num_prompt, row.test.num_gen, row.test.depth,
                       row.mean(), row.deviation());
  }
  return out;
}

}  // namespace

absl::Status RunSpeedBench(SpeedBenchOptions options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto model, OpenModel(options.model.path));
  const std::vector<BenchCase> cases = Cases(options);
  if (cases.empty()) {
    return WithExitCode(InvalidArgument("nothing to measure: -p and -n are both 0"),
                        ExitCode::kUsage);
  }
  if (options.threads.empty()) options.threads = {0};  // as many as the machine allows
  std::vector<BenchRow> rows;
  for (int num_threads : options.threads) {
    ModelOptions model_options = options.model;
    model_options.num_threads = num_threads;
    SWITCHYARD_RETURN_IF_ERROR(RunThreads(*model, model_options, cases, options.repetitions, rows));
  }
  if (options.output == "json") return WriteOutput(Json(rows, *model, options));
  if (options.output == "csv") return WriteOutput(Csv(rows, *model));
  return WriteOutput(Table(rows, *model));
}

}  // namespace switchyard::app
