#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/command.h"
#include "app/engine_setup.h"
#include "app/exit_code.h"
#include "app/generation_run.h"
#include "app/load/percentiles.h"
#include "app/loaded_model.h"
#include "app/terminal.h"
#include "app/version.h"
#include "base/progress_bar.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/units.h"

namespace switchyard::app {
namespace {

struct SweepOptions {
  ModelOptions model;
  std::vector<std::string> contexts = {"512", "2k", "8k"};
  int num_gen = 32;
  int repetitions = 3;
  std::string output;
};

// One answer, as the engine measured it.
struct SweepSample {
  int prompt_tokens = 0;
  int cached_tokens = 0;
  double prefill_per_second = 0;  // evaluated tokens only
  double ttft_seconds = 0;
  double decode_per_second = 0;
};

// One line: a context length, cold or after a prefix hit.
struct SweepRow {
  int context = 0;
  bool is_hit = false;
  std::vector<SweepSample> samples;  // one a repetition

  std::vector<double> Values(double SweepSample::*member) const {
    std::vector<double> values;
    for (const SweepSample& sample : samples) values.push_back(sample.*member);
    return values;
  }
};

absl::StatusOr<std::vector<int>> ParseContexts(const SweepOptions& options, int64_t max_context) {
  std::vector<int> contexts;
  for (const std::string& text : options.contexts) {
    const auto count = ParseCount(text);
    if (!count.ok() || *count < 1 || *count + options.num_gen > max_context) {
      return WithExitCode(
          InvalidArgument("--contexts wants counts from 1 to {} (the model's context without -n), "
                          "got: {}",
                          max_context - options.num_gen, text),
          ExitCode::kUsage);
    }
    contexts.push_back(static_cast<int>(*count));
  }
  return contexts;
}

// Fixed pseudo-random tokens, so that every run routes alike.
std::vector<int32_t> Tokens(int count, int vocab_size) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    tokens[static_cast<size_t>(i)] = static_cast<int32_t>((int64_t{i} * 7919 + 13) % vocab_size);
  }
  return tokens;
}

absl::StatusOr<SweepSample> RunSample(coordinator::Generator& generator,
                                      const std::vector<int32_t>& prompt, int num_gen,
                                      const std::string& salt) {
  coordinator::GenerationRequest request;
  request.prompt = prompt;
  request.max_tokens = num_gen;
  request.ignore_eos = true;
  request.cache_salt = salt;
  request.sampling.set_temperature(0);
  SWITCHYARD_ASSIGN_OR_RETURN(const auto last, RunGeneration(generator, std::move(request)));
  const auto rate = [](int count, double seconds) { return seconds > 0 ? count / seconds : 0; };
  SweepSample sample;
  sample.prompt_tokens = last.usage.prompt_tokens;
  sample.cached_tokens = last.usage.cached_tokens;
  sample.prefill_per_second =
      rate(last.usage.prompt_tokens - last.usage.cached_tokens, last.timings.prefill_seconds);
  sample.ttft_seconds = last.timings.ttft_seconds;
  sample.decode_per_second = rate(last.usage.completion_tokens - 1, last.timings.decode_seconds);
  return sample;
}

absl::Status CheckKind(const SweepRow& row, const SweepSample& sample) {
  if ((sample.cached_tokens > 0) == row.is_hit) return absl::OkStatus();
  return Internal("a {} run reused {} tokens", row.is_hit ? "prefix-hit" : "cold",
                  sample.cached_tokens);
}

// A prompt is stored up to the last multiple of this many tokens before its end.
constexpr int kPrefixGrain = 64;

absl::StatusOr<std::vector<SweepRow>> RunSweep(const LoadedModel& model,
                                               coordinator::Generator& generator,
                                               const std::vector<int>& contexts,
                                               const SweepOptions& options) {
  ProgressBar bar("measuring", static_cast<int64_t>(contexts.size()) * (options.repetitions + 1),
                  TerminalProgressOptions(ProgressBar::Unit::kTokens));
  std::vector<SweepRow> rows;
  int64_t num_done = 0;
  for (const int context : contexts) {
    const std::vector<int32_t> prompt = Tokens(context, model.tokenizer.vocab_size());
    SweepRow cold{context, false, {}};
    SweepRow hit{context, true, {}};
    const bool can_hit = context > kPrefixGrain;
    // The first repetition warms up: caches, pages of the weights, clocks.
    for (int r = 0; r <= options.repetitions; ++r) {
      const std::string salt = fmt::format("sweep-{}-{}", context, r);
      for (SweepRow* row : {&cold, &hit}) {
        if (row->is_hit && !can_hit) continue;
        SWITCHYARD_ASSIGN_OR_RETURN(const SweepSample sample,
                                    RunSample(generator, prompt, options.num_gen, salt));
        SWITCHYARD_RETURN_IF_ERROR(CheckKind(*row, sample));
        if (r > 0) row->samples.push_back(sample);
      }
      bar.Set(++num_done);
    }
    rows.push_back(std::move(cold));
    if (can_hit) rows.push_back(std::move(hit));
  }
  return rows;
}

// Median, and between which values the middle four fifths lie.
std::string Spread(std::vector<double> values, int digits) {
  return fmt::format("{:.{}f} ({:.{}f}-{:.{}f})", Percentile(values, 50), digits,
                     Percentile(values, 10), digits, Percentile(values, 90), digits);
}

std::string Table(const std::vector<SweepRow>& rows) {
  std::string out = "| context | prefix | reused | prefill tok/s | TTFT s | decode tok/s |\n";
  out += "| ---: | --- | ---: | ---: | ---: | ---: |\n";
  for (const SweepRow& row : rows) {
    out += fmt::format("| {} | {} | {} | {} | {} | {} |\n", row.context,
                       row.is_hit ? "hit" : "cold", row.samples.front().cached_tokens,
                       Spread(row.Values(&SweepSample::prefill_per_second), 1),
                       Spread(row.Values(&SweepSample::ttft_seconds), 3),
                       Spread(row.Values(&SweepSample::decode_per_second), 1));
  }
  return out;
}

std::string Csv(const std::vector<SweepRow>& rows) {
  std::string out =
      "context,prefix,repetition,prompt_tokens,cached_tokens,prefill_per_second,ttft_seconds,"
      "decode_per_second\n";
  for (const SweepRow& row : rows) {
    int repetition = 0;
    for (const SweepSample& sample : row.samples) {
      out += fmt::format("{},{},{},{},{},{:.6f},{:.6f},{:.6f}\n", row.context,
                         row.is_hit ? "hit" : "cold", repetition++, sample.prompt_tokens,
                         sample.cached_tokens, sample.prefill_per_second, sample.ttft_seconds,
                         sample.decode_per_second);
    }
  }
  return out;
}

std::string Json(const std::vector<SweepRow>& rows, const LoadedModel& model,
                 const SweepOptions& options) {
  nlohmann::ordered_json json = {
      {"model", std::filesystem::path(model.file.path(0)).filename().string()},
      {"version", Version()},
      {"device", options.model.device},
      {"num_threads",
       options.model.num_threads > 0 ? options.model.num_threads : DefaultNumThreads()},
      {"kv_type", options.model.kv_type},
      {"num_gen", options.num_gen},
      {"rows", nlohmann::ordered_json::array()}};
  for (const SweepRow& row : rows) {
    nlohmann::ordered_json entry = {{"context", row.context},
                                    {"prefix", row.is_hit ? "hit" : "cold"},
                                    {"samples", nlohmann::ordered_json::array()}};
    for (const SweepSample& sample : row.samples) {
      entry["samples"].push_back({{"prompt_tokens", sample.prompt_tokens},
                                  {"cached_tokens", sample.cached_tokens},
                                  {"prefill_per_second", sample.prefill_per_second},
                                  {"ttft_seconds", sample.ttft_seconds},
                                  {"decode_per_second", sample.decode_per_second}});
    }
    json["rows"].push_back(std::move(entry));
  }
  return json.dump(1) + "\n";
}

absl::Status Sweep(SweepOptions options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto model, OpenModel(options.model.path));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<int> contexts,
                              ParseContexts(options, model->spec.context_length));
  options.model.context = *std::max_element(contexts.begin(), contexts.end()) + options.num_gen;
  SWITCHYARD_ASSIGN_OR_RETURN(const auto engine, StartEngine(*model, options.model));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<SweepRow> rows,
                              RunSweep(*model, *engine, contexts, options));
  if (options.output == "json") return WriteOutput(Json(rows, *model, options));
  if (options.output == "csv") return WriteOutput(Csv(rows));
  return WriteOutput(Table(rows));
}

}  // namespace

void AddSweepCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command =
      app.add_subcommand("sweep", "Measure prefill, TTFT and decode by context length");
  auto options = std::make_shared<SweepOptions>();
  // A stored prefix that did not fit would turn a hit into a cold run.
  options->model.prefix_cache_bytes = int64_t{1} << 30;
  command->add_option("-m,--model", options->model.path, "GGUF file")->required();
  command->add_option("--contexts", options->contexts, "Prompt lengths; a list such as 512,8k,32k")
      ->delimiter(',')
      ->default_str("512,2k,8k");
  command->add_option("-n,--n-gen", options->num_gen, "Tokens of each answer")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("-r,--repetitions", options->repetitions, "Repetitions, after one warm-up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  AddDeviceOptions(*command, options->model);
  AddGroupOptions(*command, options->model);
  AddOutputOption(*command, options->output, {"md", "json", "csv"});
  command->footer(
      "Cold prompts are computed in full; a hit continues from a stored prefix of the same\n"
      "prompt. The two are never averaged together.\n"
      "Example:\n  switchyard sweep -m model.gguf --contexts 512,8k,32k -n 64 -t 2");
  command->callback([&body, options] { body = [options] { return Sweep(*options); }; });
}

}  // namespace switchyard::app
