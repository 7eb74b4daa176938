// bench decode: tokens per second of a model, beside the read bandwidth that limits it.
#include <algorithm>
#include <memory>
#include <utility>

#include "app/bench/bandwidth_probe.h"
#include "app/bench/bench_options.h"
#include "app/bench/model_bench.h"
#include "app/bench/spread.h"
#include "app/cost_report.h"
#include "app/exit_code.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/step_costs.h"
#include "model/model_summary.h"

namespace switchyard::app {
namespace {

namespace v1 = switchyard::worker::v1;

struct DecodeBenchOptions {
  ModelBenchOptions model;
  int num_gen = 64;
  int depth = 0;
  BandwidthProbe::Options probe;
};

// Bytes of weights that the steps say they read; rows of tables are no part of it.
int64_t LedgerBytes(const coordinator::StepCosts& costs) {
  int64_t bytes = 0;
  for (size_t stage = 0; stage < costs.stages.size(); ++stage) {
    if (stage != v1::STAGE_EMBED) bytes += costs.stages[stage].weight_bytes;
  }
  return bytes;
}

// The ledger, the tensors in memory and the summary of the file must tell the same story, else one
// of them leaves out work.
absl::Status CheckBytes(const LoadedModel& model, const worker::TokenWeights& token,
                        int64_t ledger_bytes) {
  const model::ModelSummary summary = model::Summarize(model.spec);
  const int64_t file_bytes = summary.dense_bytes_per_token + summary.expert_bytes_per_token;
  // An indexer of a layer that does not select blocks is in the file and not in memory.
  const int64_t unused_bytes = summary.part(model::ModelPart::kIndexer).bytes;
  if (token.file_bytes > file_bytes || token.file_bytes < file_bytes - unused_bytes) {
    return Internal(
        "the loaded weights are not those of the file, wanted bytes a token: {}, got: "
        "{}",
        file_bytes, token.file_bytes);
  }
  // Whether rows that only fill up a panel count may differ by a hundredth.
  const int64_t margin_bytes = token.memory_bytes / 100;
  if (ledger_bytes > token.memory_bytes + margin_bytes ||
      ledger_bytes < token.memory_bytes - token.vector_bytes - margin_bytes) {
    return Internal("the ledger does not cover the weights, wanted bytes a token: {}, got: {}",
                    token.memory_bytes, ledger_bytes);
  }
  return absl::OkStatus();
}

class DecodeBench {
 public:
  DecodeBench(const LoadedModel& model, const DecodeBenchOptions& options, BandwidthProbe probe)
      : model_(model), options_(options), probe_(std::move(probe)) {}

  absl::Status Measure(const ModelSetting& setting) {
    TimedPool pool(setting.num_threads);
    coordinator::StepCosts costs;
    const kernels::Backend& backend = setting.driver->worker().backend();
    int64_t num_barriers = 0;
    SWITCHYARD_ASSIGN_OR_RETURN(
        const ModelRounds rounds,
        RunRounds(options_.model.bench, [&]() -> absl::StatusOr<ModelRound> {
          ModelRound round;
          SWITCHYARD_ASSIGN_OR_RETURN(const StageTime limit, probe_.Read(pool, setting.level));
          round.limit = static_cast<double>(probe_.bytes()) / limit.wall_seconds / 1e9;
          round.limit_cpu = static_cast<double>(probe_.bytes()) / limit.cpu_seconds / 1e9;
          SWITCHYARD_RETURN_IF_ERROR(PrepareContext(*setting.driver));
          coordinator::StepCosts round_costs;
          const int64_t barriers = backend.num_barriers();
          const double cpu_start = ProcessCpuSeconds();
          const double start = MonotonicClock::Get().NowSeconds();
          SWITCHYARD_ASSIGN_OR_RETURN(
              const std::vector<int32_t> tokens,
              setting.driver->Decode(options_.num_gen, [&](const v1::StepResult& result) {
                round_costs.Add(result);
              }));
          round.seconds = MonotonicClock::Get().NowSeconds() - start;
          round.cpu_seconds = (ProcessCpuSeconds() - cpu_start) / setting.num_threads;
          num_barriers = backend.num_barriers() - barriers;
          SWITCHYARD_RETURN_IF_ERROR(CheckTokens(tokens));
          costs += round_costs;
          return round;
        }));
    const int64_t ledger_bytes = LedgerBytes(costs) / costs.num_steps;
    const worker::TokenWeights& token = setting.driver->worker().memory().token;
    SWITCHYARD_RETURN_IF_ERROR(CheckBytes(model_, token, ledger_bytes));
    AddRow(setting, rounds, costs, num_barriers);
    return absl::OkStatus();
  }

  nlohmann::ordered_json TakeRows() { return std::move(rows_); }

 private:
  // A generation continues from a token, so one more than the depth is computed in front of it.
  absl::Status PrepareContext(StepDriver& driver) const {
    driver.Reset();
    return driver.Prefill(BenchTokens(0, options_.depth + 1, model_.tokenizer.vocab_size()),
                          options_.model.model.chunk_tokens, /*sample=*/true, nullptr);
  }

  // Every round of every setting generates the same.
  absl::Status CheckTokens(const std::vector<int32_t>& tokens) {
    if (tokens_.empty()) tokens_ = tokens;
    if (tokens == tokens_) return absl::OkStatus();
    return Internal("the results are wrong: tokens differ between rounds");
  }

  void AddRow(const ModelSetting& setting, const ModelRounds& rounds,
              const coordinator::StepCosts& costs, int64_t num_barriers) {
    const worker::TokenWeights& token = setting.driver->worker().memory().token;
    std::vector<double> per_second, per_second_cpu, gigabytes;
    for (const ModelRound& round : rounds.rounds) {
      per_second.push_back(options_.num_gen / round.seconds);
      per_second_cpu.push_back(options_.num_gen / round.cpu_seconds);
      gigabytes.push_back(per_second.back() * static_cast<double>(token.memory_bytes) / 1e9);
    }
    const double rate = SpreadOf(per_second).median;
    const double rate_cpu = SpreadOf(per_second_cpu).median;
    const double limit = SpreadOf(rounds.Values(&ModelRound::limit)).median;
    const double limit_cpu = SpreadOf(rounds.Values(&ModelRound::limit_cpu)).median;
    const auto share = [](double tokens_per_second, int64_t bytes, double gb_per_second) {
      return tokens_per_second * static_cast<double>(bytes) / 1e9 / gb_per_second;
    };
    nlohmann::ordered_json stages = CostsJson(costs)["stages"];
    for (auto& stage : stages) {
      stage["seconds"] = stage["seconds"].get<double>() / static_cast<double>(costs.num_steps);
      stage["weight_bytes"] = stage["weight_bytes"].get<int64_t>() / costs.num_steps;
    }
    rows_.push_back({{"threads", setting.num_threads},
                     {"cpu_level", CpuLevelName(setting.level)},
                     {"num_gen", options_.num_gen},
                     {"depth", options_.depth},
                     {"tokens_per_second", SpreadJson(per_second)},
                     {"tokens_per_second_cpu", SpreadJson(per_second_cpu)},
                     {"active_memory_bytes", token.memory_bytes},
                     {"active_file_bytes", token.file_bytes},
                     {"gb_per_second", SpreadJson(gigabytes)},
                     {"read_gb_per_second", SpreadJson(rounds.Values(&ModelRound::limit))},
                     {"read_gb_per_second_cpu", SpreadJson(rounds.Values(&ModelRound::limit_cpu))},
                     {"share_memory", share(rate, token.memory_bytes, limit)},
                     {"share_file", share(rate, token.file_bytes, limit)},
                     {"share_memory_cpu", share(rate_cpu, token.memory_bytes, limit_cpu)},
                     {"barriers_per_token", static_cast<double>(num_barriers) / options_.num_gen},
                     {"stages", std::move(stages)},
                     {"unattributed_seconds",
                      costs.unattributed_seconds() / static_cast<double>(costs.num_steps)},
                     {"load_seconds", setting.load_seconds},
                     {"resident_bytes", setting.driver->worker().memory().weight_bytes},
                     {"foreign_cpus", rounds.ForeignCpus()},
                     {"quiet", rounds.is_quiet},
                     {"discarded", rounds.num_discarded}});
  }

  const LoadedModel& model_;
  const DecodeBenchOptions& options_;
  BandwidthProbe probe_;
  std::vector<int32_t> tokens_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

absl::Status RunDecodeBench(const DecodeBenchOptions& options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto model, OpenModel(options.model.model.path));
  // A generation starts from one more token and from the one that was sampled after it.
  const int64_t context = int64_t{options.depth} + options.num_gen + 2;
  if (context > model->spec.context_length) {
    return WithExitCode(InvalidArgument("the test needs {} tokens, the context has {}", context,
                                        model->spec.context_length),
                        ExitCode::kUsage);
  }
  const std::vector<int> threads = ThreadsOf(options.model.bench);
  TimedPool filler(*std::max_element(threads.begin(), threads.end()));
  SWITCHYARD_ASSIGN_OR_RETURN(BandwidthProbe probe, BandwidthProbe::Create(options.probe, filler));
  DecodeBench bench(*model, options, std::move(probe));
  ModelChecks checks;
  SWITCHYARD_RETURN_IF_ERROR(
      ForEachSetting(*model, options.model, context, checks,
                     [&](const ModelSetting& setting) { return bench.Measure(setting); }));
  nlohmann::ordered_json report = BenchReport("decode", bench.TakeRows());
  report["model"] = ModelJson(*model, checks);
  return WriteBenchReport(
      report, options.model.bench,
      {"threads", "cpu_level", "tokens_per_second.median", "tokens_per_second.min",
       "tokens_per_second.max", "gb_per_second.median", "read_gb_per_second.median", "share_memory",
       "share_file", "share_memory_cpu", "barriers_per_token", "foreign_cpus", "quiet"});
}

}  // namespace

void AddDecodeBench(CLI::App& bench, CommandBody& body) {
  CLI::App* command = bench.add_subcommand(
      "decode", "Measure decoding beside the read bandwidth, in alternating rounds");
  auto options = std::make_shared<DecodeBenchOptions>();
  options->model.bench.repetitions = 5;
  AddModelBenchFlags(*command, options->model);
  command->add_option("-n,--n-gen", options->num_gen, "Tokens to generate in a round")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("-d,--n-depth", options->depth, "Tokens in front, not timed")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  AddBytesFlag(*command, "--bytes", options->probe.bytes, 1,
               "Size of the array whose reading is the limit (default: as for membw)");
  command->footer(
      "share_memory is the rate times the bytes of weights in memory by the read bandwidth,\n"
      "share_file the same with the bytes in the file; both by medians. Answers are checked "
      "first:\n"
      "the same bits from every setting, close to the reference backend.\n"
      "Example:\n  switchyard bench decode -m model.gguf -t 1,2 --cpu-level avx2,avx512vnni");
  command->callback([&body, options] { body = [options] { return RunDecodeBench(*options); }; });
}

}  // namespace switchyard::app
