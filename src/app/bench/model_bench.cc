#include "app/bench/model_bench.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fmt/format.h>
#include <utility>

#include "app/bench/foreign_cpu.h"
#include "app/bench/quiet_run.h"
#include "app/engine_setup.h"
#include "app/interrupt.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "model/model_summary.h"

namespace switchyard::app {
namespace {

struct Setting {
  int num_threads = 1;
  kernels::cpu::CpuLevel level = kernels::cpu::CpuLevel::kScalar;
  bool is_measured = true;

  std::string Name() const {
    return fmt::format("{} with {} thread{}", CpuLevelName(level), num_threads,
                       num_threads == 1 ? "" : "s");
  }
};

absl::StatusOr<std::vector<Setting>> SettingsOf(const BenchOptions& options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto levels, LevelsOf(options));
  const std::vector<int> threads = ThreadsOf(options);
  std::vector<Setting> settings;
  for (const auto level : levels) {
    for (const int num_threads : threads) settings.push_back({num_threads, level});
  }
  // An answer must be compared with another.
  if (settings.size() == 1) {
    settings.push_back({settings[0].num_threads == 1 ? 2 : 1, settings[0].level, false});
  }
  return settings;
}

// What one setting answers. Prompts that come token by token go through the kernels of decode,
// whole ones through those of prefill.
struct SettingAnswers {
  ModelAnswer by_token;
  ModelAnswer by_chunk;
};

absl::StatusOr<SettingAnswers> AskSetting(StepDriver& driver, int vocab_size) {
  SettingAnswers answers;
  SWITCHYARD_ASSIGN_OR_RETURN(answers.by_token,
                              AskModel(driver, vocab_size, kCheckPrompt, 1, kCheckTokens));
  SWITCHYARD_ASSIGN_OR_RETURN(
      answers.by_chunk, AskModel(driver, vocab_size, kCheckPrompt, kCheckPrompt, kCheckTokens));
  SWITCHYARD_RETURN_IF_ERROR(
      CheckCloseAnswer(answers.by_chunk, answers.by_token, "one chunk and single tokens").status());
  return answers;
}

absl::Status CheckSameAnswers(const SettingAnswers& a, const SettingAnswers& b,
                              const std::string& what) {
  SWITCHYARD_RETURN_IF_ERROR(CheckSameAnswer(a.by_token, b.by_token, what));
  return CheckSameAnswer(a.by_chunk, b.by_chunk, what);
}

}  // namespace

void AddModelBenchFlags(CLI::App& command, ModelBenchOptions& options) {
  command.add_option("-m,--model", options.model.path, "GGUF file")->required();
  AddBenchFlags(command, options.bench);
  command.add_option("--kv-type", options.model.kv_type, "Type of cached keys and values")
      ->check(CLI::IsMember({"f32", "f16", "q8_0"}))
      ->capture_default_str();
  command.add_flag("--huge-pages,!--no-huge-pages", options.model.huge_pages,
                   "Ask for huge pages for the weights (default: on)");
  command
      .add_option("--recode", options.model.recode,
                  "Keep IQ3_S and IQ3_XXS in a quarter more bytes: auto = if they fit")
      ->check(CLI::IsMember({"auto", "never", "always"}))
      ->capture_default_str();
  command.add_flag("!--no-reference", options.check_reference,
                   "Do not compare with the reference backend, which is slow on large models");
}

absl::Status ForEachSetting(const LoadedModel& model, const ModelBenchOptions& options,
                            int64_t context, ModelChecks& checks,
                            const std::function<absl::Status(const ModelSetting&)>& measure) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<Setting> settings, SettingsOf(options.bench));
  const int vocab_size = model.tokenizer.vocab_size();
  std::optional<SettingAnswers> first;
  for (const Setting& setting : settings) {
    ModelOptions model_options = options.model;
    model_options.num_threads = setting.num_threads;
    model_options.cpu_level = CpuLevelName(setting.level);
    model_options.context = std::max<int64_t>(context, kCheckPrompt + kCheckTokens + 1);
    SWITCHYARD_ASSIGN_OR_RETURN(const worker::WorkerOptions worker_options,
                                MakeWorkerOptions(model, model_options));
    const double start = MonotonicClock::Get().NowSeconds();
    SWITCHYARD_ASSIGN_OR_RETURN(auto worker, LoadWorker(model, model_options, worker_options));
    const double load_seconds = MonotonicClock::Get().NowSeconds() - start;
    StepDriver driver(std::move(worker), worker_options);
    SWITCHYARD_ASSIGN_OR_RETURN(SettingAnswers answers, AskSetting(driver, vocab_size));
    if (first) {
      SWITCHYARD_RETURN_IF_ERROR(CheckSameAnswers(
          *first, answers, fmt::format("{} and {}", settings.front().Name(), setting.Name())));
    } else {
      first = std::move(answers);
      if (options.check_reference) {
        SWITCHYARD_ASSIGN_OR_RETURN(checks.reference_difference,
                                    CheckAgainstReference(model, options.model, driver));
      }
    }
    checks.settings.push_back(setting.Name());
    if (!setting.is_measured) continue;
    SWITCHYARD_RETURN_IF_ERROR(
        measure({setting.num_threads, setting.level, load_seconds, &driver}));
  }
  return absl::OkStatus();
}

std::vector<double> ModelRounds::Values(double ModelRound::*member) const {
  std::vector<double> values;
  for (const ModelRound& round : rounds) values.push_back(round.*member);
  return values;
}

nlohmann::ordered_json ModelRounds::ForeignCpus() const {
  double most = 0;
  for (const ModelRound& round : rounds) {
    if (!round.foreign_cpus) return nullptr;
    most = std::max(most, *round.foreign_cpus);
  }
  return most;
}

absl::StatusOr<ModelRounds> RunRounds(const BenchOptions& options,
                                      const std::function<absl::StatusOr<ModelRound>()>& round) {
  const auto wanted = static_cast<size_t>(options.repetitions);
  std::vector<ModelRound> quiet, loud;
  for (int r = 0; r <= kQuietAttempts * options.repetitions && quiet.size() < wanted; ++r) {
    if (IsInterrupted()) return InterruptedStatus();
    const ForeignCpuMeter meter;
    SWITCHYARD_ASSIGN_OR_RETURN(ModelRound result, round());
    if (r == 0) continue;  // warms up: caches, pages of the weights, clocks
    result.foreign_cpus = meter.ForeignCpus();
    // A kernel that does not say will not say next time either.
    if (!result.foreign_cpus && r == options.repetitions) r = kQuietAttempts * options.repetitions;
    const bool is_quiet =
        result.foreign_cpus.has_value() && *result.foreign_cpus <= options.max_foreign_cpus;
    (is_quiet ? quiet : loud).push_back(result);
  }
  ModelRounds rounds;
  rounds.is_quiet = quiet.size() == wanted;
  rounds.rounds = std::move(quiet);
  rounds.num_discarded = static_cast<int>(loud.size());
  if (rounds.is_quiet) return rounds;
  // Those that were disturbed least fill up.
  std::sort(loud.begin(), loud.end(), [](const ModelRound& a, const ModelRound& b) {
    return a.foreign_cpus < b.foreign_cpus;
  });
  const size_t num_taken = std::min(wanted - rounds.rounds.size(), loud.size());
  rounds.rounds.insert(rounds.rounds.end(), loud.begin(),
                       loud.begin() + static_cast<ptrdiff_t>(num_taken));
  rounds.num_discarded -= static_cast<int>(num_taken);
  return rounds;
}

double ProcessCpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

nlohmann::ordered_json ModelJson(const LoadedModel& model, const ModelChecks& checks) {
  const model::ModelSummary summary = model::Summarize(model.spec);
  return {{"file", std::filesystem::path(model.file.path(0)).filename().string()},
          {"bytes", summary.bytes},
          {"active_file_bytes", summary.dense_bytes_per_token + summary.expert_bytes_per_token},
          {"same_bits", checks.settings},
          {"reference_difference", checks.reference_difference
                                       ? nlohmann::ordered_json(*checks.reference_difference)
                                       : nlohmann::ordered_json(nullptr)}};
}

}  // namespace switchyard::app
