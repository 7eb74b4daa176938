// bench prefill: prompt tokens per second of a model, beside the byte products that limit it.
#include <algorithm>
#include <memory>
#include <utility>

#include "app/bench/bench_options.h"
#include "app/bench/model_bench.h"
#include "app/bench/peak_probe.h"
#include "app/bench/spread.h"
#include "app/exit_code.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

struct PrefillBenchOptions {
  ModelBenchOptions model;
  std::vector<int> num_prompt = {512};
};

// Operations of a prompt's products with weights: two a parameter and token; logits are computed
// for the last token only. Attention scores and the recurrence are not counted.
double Operations(const worker::TokenWeights& token, int num_prompt) {
  const auto trunk = static_cast<double>(token.num_parameters - token.num_output_parameters);
  return 2 * (trunk * num_prompt + static_cast<double>(token.num_output_parameters));
}

class PrefillBench {
 public:
  PrefillBench(const LoadedModel& model, const PrefillBenchOptions& options)
      : model_(model), options_(options) {}

  absl::Status Measure(const ModelSetting& setting) {
    TimedPool pool(setting.num_threads);
    for (const int num_prompt : options_.num_prompt) {
      const std::vector<int32_t> prompt = BenchTokens(0, num_prompt, model_.tokenizer.vocab_size());
      SWITCHYARD_ASSIGN_OR_RETURN(
          const ModelRounds rounds,
          RunRounds(options_.model.bench, [&]() -> absl::StatusOr<ModelRound> {
            ModelRound round;
            SWITCHYARD_ASSIGN_OR_RETURN(const PeakRate peak, MeasureDotPeak(pool, setting.level));
            round.limit = peak.gop_per_second;
            round.limit_cpu = peak.gop_per_second_cpu;
            setting.driver->Reset();
            const double cpu_start = ProcessCpuSeconds();
            const double start = MonotonicClock::Get().NowSeconds();
            SWITCHYARD_RETURN_IF_ERROR(setting.driver->Prefill(
                prompt, options_.model.model.chunk_tokens, /*sample=*/true, nullptr));
            round.seconds = MonotonicClock::Get().NowSeconds() - start;
            round.cpu_seconds = (ProcessCpuSeconds() - cpu_start) / setting.num_threads;
            return round;
          }));
      AddRow(setting, num_prompt, rounds);
    }
    return absl::OkStatus();
  }

  nlohmann::ordered_json TakeRows() { return std::move(rows_); }

 private:
  void AddRow(const ModelSetting& setting, int num_prompt, const ModelRounds& rounds) {
    const double operations = Operations(setting.driver->worker().memory().token, num_prompt) / 1e9;
    std::vector<double> per_second, per_second_cpu, rate, rate_cpu;
    for (const ModelRound& round : rounds.rounds) {
      per_second.push_back(num_prompt / round.seconds);
      per_second_cpu.push_back(num_prompt / round.cpu_seconds);
      rate.push_back(operations / round.seconds);
      rate_cpu.push_back(operations / round.cpu_seconds);
    }
    const auto share = [](const std::vector<double>& rates,
                          const std::vector<double>& limits) -> nlohmann::ordered_json {
      const double limit = SpreadOf(limits).median;
      if (limit == 0) return nullptr;  // the scalar level has none
      return SpreadOf(rates).median / limit;
    };
    const std::vector<double> limit = rounds.Values(&ModelRound::limit);
    rows_.push_back({{"threads", setting.num_threads},
                     {"cpu_level", CpuLevelName(setting.level)},
                     {"num_prompt", num_prompt},
                     {"tokens_per_second", SpreadJson(per_second)},
                     {"tokens_per_second_cpu", SpreadJson(per_second_cpu)},
                     {"ttft_seconds", SpreadJson(rounds.Values(&ModelRound::seconds))},
                     {"gop_per_second", SpreadJson(rate)},
                     {"peak_gop_per_second", SpreadJson(limit)},
                     {"share_of_peak", share(rate, limit)},
                     {"share_of_peak_cpu", share(rate_cpu, rounds.Values(&ModelRound::limit_cpu))},
                     {"load_seconds", setting.load_seconds},
                     {"foreign_cpus", rounds.ForeignCpus()},
                     {"quiet", rounds.is_quiet},
                     {"discarded", rounds.num_discarded}});
  }

  const LoadedModel& model_;
  const PrefillBenchOptions& options_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

absl::Status RunPrefillBench(const PrefillBenchOptions& options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto model, OpenModel(options.model.model.path));
  const int64_t context = *std::max_element(options.num_prompt.begin(), options.num_prompt.end());
  if (context > model->spec.context_length) {
    return WithExitCode(InvalidArgument("the test needs {} tokens, the context has {}", context,
                                        model->spec.context_length),
                        ExitCode::kUsage);
  }
  PrefillBench bench(*model, options);
  ModelChecks checks;
  SWITCHYARD_RETURN_IF_ERROR(
      ForEachSetting(*model, options.model, context, checks,
                     [&](const ModelSetting& setting) { return bench.Measure(setting); }));
  nlohmann::ordered_json report = BenchReport("prefill", bench.TakeRows());
  report["model"] = ModelJson(*model, checks);
  return WriteBenchReport(report, options.model.bench,
                          {"threads", "cpu_level", "num_prompt", "tokens_per_second.median",
                           "tokens_per_second.min", "tokens_per_second.max", "ttft_seconds.median",
                           "gop_per_second.median", "peak_gop_per_second.median", "share_of_peak",
                           "share_of_peak_cpu", "foreign_cpus", "quiet"});
}

}  // namespace

void AddPrefillBench(CLI::App& bench, CommandBody& body) {
  CLI::App* command = bench.add_subcommand(
      "prefill", "Measure prompts beside the int8 peak of the cores, in alternating rounds");
  auto options = std::make_shared<PrefillBenchOptions>();
  options->model.bench.repetitions = 5;
  AddModelBenchFlags(*command, options->model);
  AddCountsFlag(*command, "-p,--n-prompt", options->num_prompt, "Prompt tokens; a list")
      ->default_str("512");
  command->footer(
      "TTFT is the time from the first chunk to the first sampled token. GOP/s counts two\n"
      "operations a token and active parameter, the output matrix once. Answers are checked "
      "first.\n"
      "Example:\n  switchyard bench prefill -m model.gguf -p 512,2048 -t 1,2");
  command->callback([&body, options] { body = [options] { return RunPrefillBench(*options); }; });
}

}  // namespace switchyard::app
