// bench residency: how often experts are in memory, and what that does to speed, by budget.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "app/bench/bench_options.h"
#include "app/bench/model_check.h"
#include "app/bench/spread.h"
#include "app/engine_setup.h"
#include "app/exit_code.h"
#include "app/loaded_model.h"
#include "app/model_options.h"
#include "app/step_driver.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "worker/experts/residency_table.h"

namespace switchyard::app {
namespace {

struct ResidencyBenchOptions {
  BenchOptions bench;  // its output
  ModelOptions model;
  std::vector<int> budgets = {0, 10, 25, 50, 75, 100};  // percent of the experts' bytes
  int num_prompts = 16;
  int num_prompt_tokens = 64;
  int num_gen = 32;
};

// Uses of every expert between two snapshots.
std::vector<uint64_t> UsesBetween(const worker::ResidencySnapshot& before,
                                  const worker::ResidencySnapshot& after) {
  std::vector<uint64_t> uses = after.uses;
  for (size_t i = 0; i < uses.size(); ++i) uses[i] -= before.uses[i];
  return uses;
}

double HitRateBetween(const worker::ResidencySnapshot& before,
                      const worker::ResidencySnapshot& after) {
  const worker::ExpertCounters a = before.Total(), b = after.Total();
  const auto hits = static_cast<double>(b.hits - a.hits);
  const auto misses = static_cast<double>(b.misses - a.misses);
  return hits + misses > 0 ? hits / (hits + misses) : 0;
}

// Hit rate of who had known: of each layer the experts that were used most, as many as it has
// slots.
double OracleHitRate(const std::vector<uint64_t>& uses, const worker::ResidencySnapshot& now) {
  double hits = 0, all = 0;
  for (int l = 0; l < now.num_layers; ++l) {
    const auto begin = static_cast<int64_t>(l) * now.num_experts;
    std::vector<uint64_t> layer(uses.begin() + begin, uses.begin() + begin + now.num_experts);
    int num_slots = 0;
    for (int e = 0; e < now.num_experts; ++e) {
      // A slot whose expert is on its way counts.
      const auto state = now.states[static_cast<size_t>(begin + e)];
      num_slots += state == worker::ExpertState::kHost || state == worker::ExpertState::kLoading;
    }
    std::sort(layer.rbegin(), layer.rend());
    for (int e = 0; e < now.num_experts; ++e) {
      all += static_cast<double>(layer[static_cast<size_t>(e)]);
      if (e < num_slots) hits += static_cast<double>(layer[static_cast<size_t>(e)]);
    }
  }
  return all > 0 ? hits / all : 0;
}

// Exponent of Zipf's law that the uses follow: the slope of their logarithm over that of the rank,
// by least squares, from the rank of one sixteenth of the experts to that of three quarters. The
// first ranks are cut off by the rule that a token chooses an expert once, the last ones by chance.
double ZipfExponent(const std::vector<uint64_t>& uses, int num_layers, int num_experts) {
  std::vector<double> by_rank(static_cast<size_t>(num_experts));
  for (int l = 0; l < num_layers; ++l) {
    const auto begin = static_cast<int64_t>(l) * num_experts;
    std::vector<uint64_t> layer(uses.begin() + begin, uses.begin() + begin + num_experts);
    std::sort(layer.rbegin(), layer.rend());
    for (size_t r = 0; r < layer.size(); ++r) by_rank[r] += static_cast<double>(layer[r]);
  }
  double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (size_t r = by_rank.size() / 16; r < by_rank.size() * 3 / 4; ++r) {
    if (by_rank[r] == 0) break;
    const double x = std::log(static_cast<double>(r) + 1), y = std::log(by_rank[r]);
    n += 1, sx += x, sy += y, sxx += x * x, sxy += x * y;
  }
  const double spread = n * sxx - sx * sx;
  return spread > 0 ? -(n * sxy - sx * sy) / spread : 0;
}

class ResidencyBench {
 public:
  ResidencyBench(const LoadedModel& model, const ResidencyBenchOptions& options)
      : model_(model), options_(options) {}

  // Runs all prompts with `percent` of the experts' bytes.
  absl::Status Measure(int percent) {
    SWITCHYARD_ASSIGN_OR_RETURN(worker::WorkerOptions worker_options,
                                MakeWorkerOptions(model_, options_.model));
    worker_options.max_context =
        int64_t{options_.num_prompt_tokens} + options_.num_gen + kernels::kPageTokens;
    worker_options.residency.fast_bytes = -1;
    if (percent < 100) {
      if (all_bytes_ == 0) return Internal("the budget of 100 % comes first");
      worker_options.residency.fast_bytes = all_bytes_ / 100 * percent;
    }
    SWITCHYARD_ASSIGN_OR_RETURN(auto worker, LoadWorker(model_, options_.model, worker_options));
    StepDriver driver(std::move(worker), worker_options);
    const worker::ResidencySnapshot start = driver.worker().residency();
    all_bytes_ = std::max(all_bytes_, start.budget_bytes);
    worker::ResidencySnapshot middle = start;
    std::vector<double> decode, prefill;
    std::vector<int32_t> tokens;
    for (int i = 0; i < options_.num_prompts; ++i) {
      if (i == options_.num_prompts / 2) middle = driver.worker().residency();
      SWITCHYARD_RETURN_IF_ERROR(RunPrompt(driver, i, tokens, prefill, decode));
    }
    if (expected_.empty()) expected_ = tokens;
    if (tokens != expected_) {
      return Internal("the results are wrong: tokens differ between budgets, at {} %", percent);
    }
    AddRow(percent, start, middle, driver.worker().residency(), prefill, decode);
    return absl::OkStatus();
  }

  nlohmann::ordered_json TakeRows() { return std::move(rows_); }

 private:
  absl::Status RunPrompt(StepDriver& driver, int index, std::vector<int32_t>& tokens,
                         std::vector<double>& prefill, std::vector<double>& decode) {
    const Clock& clock = MonotonicClock::Get();
    driver.Reset();
    const double begin = clock.NowSeconds();
    SWITCHYARD_RETURN_IF_ERROR(
        driver.Prefill(BenchTokens(index * options_.num_prompt_tokens, options_.num_prompt_tokens,
                                   model_.tokenizer.vocab_size()),
                       options_.model.chunk_tokens, /*sample=*/true, nullptr));
    const double middle = clock.NowSeconds();
    SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<int32_t> answer, driver.Decode(options_.num_gen));
    const double end = clock.NowSeconds();
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    if (index < options_.num_prompts / 2) return absl::OkStatus();  // experts find their places
    prefill.push_back(options_.num_prompt_tokens / (middle - begin));
    decode.push_back(options_.num_gen / (end - middle));
    return absl::OkStatus();
  }

  void AddRow(int percent, const worker::ResidencySnapshot& start,
              const worker::ResidencySnapshot& middle, const worker::ResidencySnapshot& end,
              const std::vector<double>& prefill, const std::vector<double>& decode) {
    const std::vector<uint64_t> uses = UsesBetween(middle, end);
    const worker::ExpertCounters total = end.Total();
    rows_.push_back({{"budget_percent", percent},
                     {"budget_bytes", percent < 100 ? all_bytes_ / 100 * percent : all_bytes_},
                     {"resident_experts", end.Count(worker::ExpertState::kHost)},
                     {"experts", static_cast<int64_t>(end.states.size()) -
                                     end.Count(worker::ExpertState::kAbsent)},
                     {"hit_rate_first_half", HitRateBetween(start, middle)},
                     {"hit_rate", HitRateBetween(middle, end)},
                     {"oracle_hit_rate", OracleHitRate(uses, end)},
                     {"decode_tokens_per_second", SpreadJson(decode)},
                     {"prefill_tokens_per_second", SpreadJson(prefill)},
                     {"promotions", total.promotions},
                     {"evictions", total.evictions},
                     {"bytes_moved", total.bytes_moved},
                     {"zipf_exponent",
                      ZipfExponent(UsesBetween(start, end), end.num_layers, end.num_experts)}});
  }

  const LoadedModel& model_;
  const ResidencyBenchOptions& options_;
  int64_t all_bytes_ = 0;
  std::vector<int32_t> expected_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

absl::Status RunResidencyBench(const ResidencyBenchOptions& options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto model, OpenModel(options.model.path));
  const int64_t context =
      int64_t{options.num_prompt_tokens} + options.num_gen + kernels::kPageTokens;
  if (context > model->spec.context_length) {
    return WithExitCode(InvalidArgument("the test needs {} tokens, the context has {}", context,
                                        model->spec.context_length),
                        ExitCode::kUsage);
  }
  ResidencyBench bench(*model, options);
  // All of them first: it says what a percent is, and which tokens are right.
  std::vector<int> budgets = options.budgets;
  budgets.push_back(100);
  std::sort(budgets.rbegin(), budgets.rend());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  for (const int percent : budgets) SWITCHYARD_RETURN_IF_ERROR(bench.Measure(percent));
  nlohmann::ordered_json report = BenchReport("residency", bench.TakeRows());
  report["model"] = {{"path", options.model.path},
                     {"prompts", options.num_prompts},
                     {"prompt_tokens", options.num_prompt_tokens},
                     {"num_gen", options.num_gen}};
  return WriteBenchReport(
      report, options.bench,
      {"budget_percent", "resident_experts", "experts", "hit_rate_first_half", "hit_rate",
       "oracle_hit_rate", "decode_tokens_per_second.median", "prefill_tokens_per_second.median",
       "promotions", "bytes_moved", "zipf_exponent"});
}

}  // namespace

void AddResidencyBench(CLI::App& bench, CommandBody& body) {
  CLI::App* command = bench.add_subcommand(
      "residency", "Measure hit rate and speed by the experts that are kept in memory");
  auto options = std::make_shared<ResidencyBenchOptions>();
  command->add_option("-m,--model", options->model.path, "GGUF file")->required();
  AddDeviceOptions(*command, options->model);
  command->remove_option(command->get_option("--host-expert-bytes"));
  command->remove_option(command->get_option("--expert-profile"));
  command->add_option("--budgets", options->budgets, "Percent of the experts' bytes; a list")
      ->delimiter(',')
      ->check(CLI::Range(0, 100))
      ->default_str("0,10,25,50,75,100");
  const auto add_count = [&](const char* names, int& value, int least, const char* description) {
    command->add_option(names, value, description)
        ->check(CLI::Range(least, 1 << 20))
        ->capture_default_str();
  };
  add_count("--prompts", options->num_prompts, 2, "Prompts; the first half finds places");
  add_count("-p,--n-prompt", options->num_prompt_tokens, 1, "Tokens of each, random");
  add_count("-n,--n-gen", options->num_gen, 1, "Tokens to generate after each");
  AddOutputOption(*command, options->bench.output, {"md", "json"});
  command->footer(
      "Hits are uses of experts that were in memory, in the second half of the prompts;\n"
      "oracle_hit_rate is what the best fixed choice of as many experts a layer would have had.\n"
      "All budgets must generate the same tokens.\n"
      "Example:\n"
      "  switchyard synth skewed.gguf --preset bench --router-skew 1\n"
      "  switchyard bench residency -m skewed.gguf --budgets 10,25,50 -o json");
  command->callback([&body, options] { body = [options] { return RunResidencyBench(*options); }; });
}

}  // namespace switchyard::app
