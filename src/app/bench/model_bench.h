// What `bench decode` and `bench prefill` share: a model that is loaded once for each thread count
// and level, checked, and then measured in rounds that alternate with the machine's limit.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "app/bench/bench_options.h"
#include "app/bench/model_check.h"
#include "app/loaded_model.h"
#include "app/model_options.h"
#include "app/step_driver.h"
#include "kernels/cpu/cpu_features.h"

namespace switchyard::app {

struct ModelBenchOptions {
  BenchOptions bench;
  ModelOptions model;
  bool check_reference = true;
};

// Adds `--model`, cache type, chunk, huge pages and `--no-reference` beside the flags of
// BenchOptions.
void AddModelBenchFlags(CLI::App& command, ModelBenchOptions& options);

// A loaded model with one thread count and level.
struct ModelSetting {
  int num_threads = 1;
  kernels::cpu::CpuLevel level = kernels::cpu::CpuLevel::kScalar;
  double load_seconds = 0;
  StepDriver* driver = nullptr;
};

// What the checks found.
struct ModelChecks {
  std::optional<double> reference_difference;  // nothing: not asked for
  std::vector<std::string> settings;           // whose answers have the same bits
};

// Loads the model with each setting of `options` in turn, checks that all answer with the same bits
// (and with those of one more setting, if there is only one) in chunks of `check_chunk` and token
// by token, and, once, that the reference backend agrees; then calls `measure`.
//
// Shapes: `context` tokens are enough for what `measure` does.
// Errors: those of loading and of `measure`; kInternal if an answer is wrong.
absl::Status ForEachSetting(const LoadedModel& model, const ModelBenchOptions& options,
                            int64_t context, ModelChecks& checks,
                            const std::function<absl::Status(const ModelSetting&)>& measure);

// One round: what was measured of the model and of the limit.
struct ModelRound {
  double seconds = 0;      // of the model, by the clock
  double cpu_seconds = 0;  // of this process meanwhile, by the number of threads
  double limit = 0;        // GB/s or GOP/s
  double limit_cpu = 0;    // the same by CPU time
  std::optional<double> foreign_cpus;
};

struct ModelRounds {
  std::vector<ModelRound> rounds;
  bool is_quiet = false;  // whether others used little enough in all of them
  int num_discarded = 0;

  std::vector<double> Values(double ModelRound::*member) const;
  // The most that others used in a round; null if the kernel does not say.
  nlohmann::ordered_json ForeignCpus() const;
};

// Runs `repetitions` rounds after one warm-up. Rounds in which others used more than
// `max_foreign_cpus` are discarded as long as there are enough others; three times as many rounds
// are tried at most.
absl::StatusOr<ModelRounds> RunRounds(const BenchOptions& options,
                                      const std::function<absl::StatusOr<ModelRound>()>& round);

// CPU time of this process so far.
double ProcessCpuSeconds();

// What reports say of the model: file, sizes, bytes and parameters of one token, the checks.
nlohmann::ordered_json ModelJson(const LoadedModel& model, const ModelChecks& checks);

}  // namespace switchyard::app
