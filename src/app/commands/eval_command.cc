#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/command.h"
#include "app/engine_setup.h"
#include "app/exit_code.h"
#include "app/input_file.h"
#include "app/loaded_model.h"
#include "app/output_file.h"
#include "app/step_driver.h"
#include "app/terminal.h"
#include "base/progress_bar.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

struct EvalOptions {
  ModelOptions model;
  std::string tokens_path;
  std::string logits_path;
  std::string perplexity_path;
  std::string output;
};

absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const std::string& path, int32_t vocab_size) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(path));
  std::istringstream words(text);
  std::vector<int32_t> ids;
  for (std::string word; words >> word;) {
    size_t used = 0;
    int64_t id = -1;
    if (word.size() <= 10 && word.find_first_not_of("0123456789") == std::string::npos) {
      id = std::stoll(word, &used);
    }
    if (used != word.size() || id >= vocab_size) {
      return WithExitCode(InvalidArgument("{} holds what is no token id below {}: {}", path,
                                          vocab_size, word.substr(0, 40)),
                          ExitCode::kUsage);
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  if (ids.empty()) return WithExitCode(InvalidArgument("{} holds no ids", path), ExitCode::kUsage);
  return ids;
}

// Natural logarithm of the probability of `token_id` under `logits`.
double LogProbability(absl::Span<const float> logits, int32_t token_id) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - largest);
  return logits[static_cast<size_t>(token_id)] - largest - std::log(sum);
}

absl::Status WriteLogits(StepDriver& driver, const EvalOptions& options,
                         const std::vector<int32_t>& ids) {
  SWITCHYARD_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(options.logits_path));
  ProgressBar bar("evaluating", static_cast<int64_t>(ids.size()),
                  TerminalProgressOptions(ProgressBar::Unit::kTokens));
  SWITCHYARD_RETURN_IF_ERROR(driver.Prefill(
      ids, options.model.chunk_tokens, /*sample=*/false, [&](absl::Span<const float> logits) {
        bar.Add(1);
        return file.Write(logits.data(), logits.size() * sizeof(float));
      }));
  return file.Commit();
}

// Loss of `ids` in windows of the whole context, each from an empty state; the first token of a
// window is not predicted.
absl::Status PrintPerplexity(StepDriver& driver, const EvalOptions& options, int64_t window,
                             const std::vector<int32_t>& ids) {
  double loss = 0;
  int64_t count = 0;
  ProgressBar bar("evaluating", static_cast<int64_t>(ids.size()),
                  TerminalProgressOptions(ProgressBar::Unit::kTokens));
  for (size_t begin = 0; begin < ids.size(); begin += static_cast<size_t>(window)) {
    const auto piece = absl::MakeSpan(ids).subspan(begin, static_cast<size_t>(window));
    if (piece.size() < 2) break;
    driver.Reset();
    size_t next = 1;
    SWITCHYARD_RETURN_IF_ERROR(driver.Prefill(piece, options.model.chunk_tokens, /*sample=*/false,
                                              [&](absl::Span<const float> logits) {
                                                bar.Add(1);
                                                if (next == piece.size()) return absl::OkStatus();
                                                loss -= LogProbability(logits, piece[next++]);
                                                ++count;
                                                return absl::OkStatus();
                                              }));
  }
  if (count == 0) return InvalidArgument("the text has fewer than two tokens");
  loss /= static_cast<double>(count);
  if (options.output == "json") {
    const nlohmann::ordered_json json = {{"tokens", ids.size()},
                                         {"predicted", count},
                                         {"window", window},
                                         {"loss", loss},
                                         {"perplexity", std::exp(loss)}};
    return WriteOutput(json.dump() + "\n");
  }
  return WriteOutput(
      fmt::format("tokens {}  loss {:.6f}  perplexity {:.5f}\n", ids.size(), loss, std::exp(loss)));
}

absl::Status Evaluate(const EvalOptions& options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto model, OpenModel(options.model.path));
  std::vector<int32_t> ids;
  if (options.tokens_path.empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(options.perplexity_path));
    ids = model->tokenizer.Encode(text, model::SpecialMatching::kNone);
  } else {
    SWITCHYARD_ASSIGN_OR_RETURN(ids, ReadTokenIds(options.tokens_path, model->spec.vocab_size));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(worker::WorkerOptions worker_options,
                              MakeWorkerOptions(*model, options.model));
  const auto num_tokens = static_cast<int64_t>(ids.size());
  if (options.perplexity_path.empty() && num_tokens > worker_options.max_context) {
    return WithExitCode(InvalidArgument("{} tokens do not fit the context of {}; see --context",
                                        num_tokens, worker_options.max_context),
                        ExitCode::kUsage);
  }
  // The logits of all rows of a step are held at once: keep them within a few hundred megabytes, or
  // within a message where they come from another process.
  const int64_t most_logits = int64_t{options.model.num_workers > 0 ? 8 : 64} << 20;
  EvalOptions bounded = options;
  const int64_t most_rows =
      std::max<int64_t>(kernels::kPageTokens, most_logits / model->spec.vocab_size /
                                                  kernels::kPageTokens * kernels::kPageTokens);
  bounded.model.chunk_tokens =
      static_cast<int>(std::min<int64_t>(options.model.chunk_tokens, most_rows));
  worker_options.max_step_rows = bounded.model.chunk_tokens;
  SWITCHYARD_ASSIGN_OR_RETURN(auto worker, StartWorker(*model, options.model, worker_options));
  StepDriver driver(std::move(worker), worker_options);
  if (!options.perplexity_path.empty()) {
    return PrintPerplexity(driver, bounded, worker_options.max_context, ids);
  }
  return WriteLogits(driver, bounded, ids);
}

}  // namespace

void AddEvalCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command =
      app.add_subcommand("eval", "Write the logits of every position, or measure perplexity");
  auto options = std::make_shared<EvalOptions>();
  AddModelOptions(*command, options->model);
  AddGroupOptions(*command, options->model);
  CLI::Option* tokens = command->add_option("--tokens", options->tokens_path,
                                            "File of token ids, decimal, separated by spaces");
  CLI::Option* logits =
      command->add_option("--logits-out", options->logits_path,
                          "Where to write the logits: little-endian float32 [tokens, vocabulary]");
  CLI::Option* perplexity = command->add_option("--perplexity", options->perplexity_path,
                                                "Text file whose perplexity to print");
  tokens->needs(logits)->excludes(perplexity);
  logits->needs(tokens);
  AddOutputOption(*command, options->output, {"text", "json"});
  command->footer(
      "Examples:\n  switchyard eval model.gguf --tokens ids.txt --logits-out logits.f32\n"
      "  switchyard eval model.gguf --perplexity book.txt -o json");
  command->callback([&body, options, tokens, perplexity] {
    if (tokens->count() + perplexity->count() == 0) {
      throw CLI::RequiredError("--tokens or --perplexity");
    }
    body = [options] { return Evaluate(*options); };
  });
}

}  // namespace switchyard::app
