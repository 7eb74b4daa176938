#include <chrono>
#include <condition_variable>
#include <fmt/format.h>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include <utility>

#include "app/command.h"
#include "app/cost_report.h"
#include "app/engine_setup.h"
#include "app/exit_code.h"
#include "app/interrupt.h"
#include "app/loaded_model.h"
#include "app/terminal.h"
#include "base/error_info.h"
#include "base/progress_bar.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/prompt.h"
#include "model/answer_parser.h"

namespace switchyard::app {
namespace {

using coordinator::FinishReason;
using coordinator::GenerationEvent;
using coordinator::Prompt;

struct RunOptions {
  ModelOptions model;
  std::string prompt;
  bool has_prompt = false;
  std::string system;
  int max_tokens = 0;  // 0 = until the model ends or the context is full
  bool raw = false;
  std::string thinking = "on";
  bool ignore_eos = false;
  bool stats = false;
  std::vector<std::string> stop;
  std::string output;

  bool greedy = false;
  float temperature = 1.0f;
  uint32_t top_k = 20;
  float top_p = 0.95f;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t seed = 0;
  bool has_seed = false;
};

// One generation from start to end on the caller's thread: prints its text as it comes.
class Answer {
 public:
  // Waits for the end. An interrupt cancels the generation.
  // Errors: kCancelled after an interrupt, what Start() and writing return, a failed worker.
  absl::Status Run(coordinator::Generator& generator, coordinator::GenerationRequest request,
                   bool print) {
    auto id = generator.Start(std::move(request), [this, print](const GenerationEvent& event) {
      std::lock_guard lock(mutex_);
      ShowProgress(event);
      text_ += event.text;
      token_ids_.insert(token_ids_.end(), event.token_ids.begin(), event.token_ids.end());
      if (print && write_status_.ok() && !event.text.empty()) {
        write_status_ = WriteOutput(event.text);
      }
      last_ = event;
      if (event.finished || !write_status_.ok()) changed_.notify_one();
    });
    if (!id.ok()) {
      const bool is_usage = id.status().code() == absl::StatusCode::kInvalidArgument;
      return WithExitCode(id.status(), is_usage ? ExitCode::kUsage : ExitCode::kFailed);
    }
    std::unique_lock lock(mutex_);
    bool is_cancelled = false;
    while (!last_.finished) {
      // Signals do not wake a condition variable, so it looks up now and then.
      changed_.wait_for(lock, std::chrono::milliseconds(20));
      if (is_cancelled || !(IsInterrupted() || !write_status_.ok())) continue;
      is_cancelled = true;
      lock.unlock();
      generator.Cancel(*id);
      lock.lock();
    }
    if (!write_status_.ok()) return write_status_;
    if (last_.reason == FinishReason::kCancelled) {
      if (print && !text_.empty() && IsTerminal(STDERR_FILENO)) WriteMessage("\n");
      return InterruptedStatus();
    }
    if (last_.reason == FinishReason::kFailed) {
      const bool is_lost = ReasonOf(last_.error) == kWorkerLost;
      return WithExitCode(last_.error, is_lost ? ExitCode::kWorkerLost : ExitCode::kFailed);
    }
    return absl::OkStatus();
  }

  const std::string& text() const { return text_; }
  const std::vector<int32_t>& token_ids() const { return token_ids_; }
  const GenerationEvent& last() const { return last_; }

 private:
  // A bar while the prompt is computed; it goes before the first text comes.
  void ShowProgress(const GenerationEvent& event) {
    if (!event.token_ids.empty() || event.finished) {
      bar_.reset();
      return;
    }
    if (bar_ == nullptr) {
      bar_ = std::make_unique<ProgressBar>("prompt", event.usage.prompt_tokens,
                                           TerminalProgressOptions(ProgressBar::Unit::kTokens));
    }
    bar_->Set(event.num_prefilled);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<ProgressBar> bar_;
  std::string text_;
  std::vector<int32_t> token_ids_;
  GenerationEvent last_;
  absl::Status write_status_;
};

double PerSecond(int count, double seconds) { return seconds > 0 ? count / seconds : 0; }

// The first token belongs to prefill: decode is counted from it to the last.
std::string SpeedLine(const GenerationEvent& last) {
  const int evaluated = last.usage.prompt_tokens - last.usage.cached_tokens;
  const auto& timings = last.timings;
  std::string line =
      fmt::format("prompt {} tokens ({} reused), prefill {:.1f} tok/s, TTFT {:.3f} s",
                  last.usage.prompt_tokens, last.usage.cached_tokens,
                  PerSecond(evaluated, timings.prefill_seconds), timings.ttft_seconds);
  if (last.usage.completion_tokens > 1) {
    line += fmt::format(", decode {:.1f} tok/s ({} tokens)",
                        PerSecond(last.usage.completion_tokens - 1, timings.decode_seconds),
                        last.usage.completion_tokens);
  }
  return line;
}

nlohmann::ordered_json ResultJson(const Answer& answer) {
  const GenerationEvent& last = answer.last();
  const int evaluated = last.usage.prompt_tokens - last.usage.cached_tokens;
  return {{"text", answer.text()},
          {"token_ids", answer.token_ids()},
          {"finish_reason", Name(last.reason)},
          {"usage",
           {{"prompt_tokens", last.usage.prompt_tokens},
            {"cached_tokens", last.usage.cached_tokens},
            {"completion_tokens", last.usage.completion_tokens}}},
          {"timings",
           {{"queue_seconds", last.timings.queue_seconds},
            {"prefill_seconds", last.timings.prefill_seconds},
            {"ttft_seconds", last.timings.ttft_seconds},
            {"decode_seconds", last.timings.decode_seconds},
            {"prefill_per_second", PerSecond(evaluated, last.timings.prefill_seconds)},
            {"decode_per_second",
             PerSecond(last.usage.completion_tokens - 1, last.timings.decode_seconds)}}}};
}

coordinator::GenerationRequest MakeRequest(const RunOptions& options, Prompt prompt) {
  coordinator::GenerationRequest request;
  request.prompt = std::move(prompt.token_ids);
  request.message_borders = std::move(prompt.message_borders);
  request.stop = options.stop;
  request.ignore_eos = options.ignore_eos;
  if (options.max_tokens > 0) request.max_tokens = options.max_tokens;
  auto& sampling = request.sampling;
  if (options.has_seed) sampling.set_seed(options.seed);
  sampling.set_repetition_penalty(options.repetition_penalty);
  sampling.set_presence_penalty(options.presence_penalty);
  sampling.set_frequency_penalty(options.frequency_penalty);
  sampling.set_temperature(options.greedy ? 0 : options.temperature);
  sampling.set_top_k(options.top_k);
  sampling.set_top_p(options.top_p);
  sampling.set_min_p(options.min_p);
  return request;
}

absl::StatusOr<Prompt> RenderChat(const RunOptions& options, const LoadedModel& model,
                                  nlohmann::ordered_json messages) {
  return coordinator::ChatPrompt(
      model.tokenizer, model.chat_template,
      {{"messages", std::move(messages)}, {"enable_thinking", options.thinking == "on"}});
}

// What follows the text: its end or all of it as data, then speeds and costs.
absl::Status PrintAnswer(const RunOptions& options, const Answer& answer) {
  if (options.output == "json") {
    nlohmann::ordered_json result = ResultJson(answer);
    if (options.stats) result["stats"] = CostsJson(answer.last().costs);
    SWITCHYARD_RETURN_IF_ERROR(
        WriteOutput(result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"));
  } else {
    SWITCHYARD_RETURN_IF_ERROR(WriteOutput("\n"));
  }
  WriteMessage(SpeedLine(answer.last()) + "\n");
  if (options.stats && options.output == "text") WriteMessage(CostTable(answer.last().costs));
  return absl::OkStatus();
}

absl::Status RunOnce(const RunOptions& options, const LoadedModel& model,
                     coordinator::Generator& generator) {
  Prompt prompt;
  if (options.raw) {
    prompt = coordinator::RawPrompt(model.tokenizer, options.prompt);
  } else {
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    if (!options.system.empty()) {
      messages.push_back({{"role", "system"}, {"content", options.system}});
    }
    messages.push_back({{"role", "user"}, {"content", options.prompt}});
    SWITCHYARD_ASSIGN_OR_RETURN(prompt, RenderChat(options, model, messages));
  }
  Answer answer;
  SWITCHYARD_RETURN_IF_ERROR(answer.Run(generator, MakeRequest(options, std::move(prompt)),
                                        /*print=*/options.output == "text"));
  return PrintAnswer(options, answer);
}

// The answer as the template takes it in the turns after it.
nlohmann::ordered_json AssistantMessage(const std::string& text, bool starts_in_reasoning) {
  model::AnswerParserOptions options;
  options.starts_in_reasoning = starts_in_reasoning;
  const model::ParsedAnswer answer = model::ParseAnswer(text, std::move(options));
  nlohmann::ordered_json message = {{"role", "assistant"}, {"content", answer.content}};
  if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
  return message;
}

// A chat on the terminal: one line, one answer, until the end of input.
absl::Status Chat(const RunOptions& options, const LoadedModel& model,
                  coordinator::Generator& generator) {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!options.system.empty()) {
    messages.push_back({{"role", "system"}, {"content", options.system}});
  }
  const bool is_terminal = IsTerminal(STDIN_FILENO);
  if (is_terminal) WriteMessage("Type a message; an empty line or Ctrl-D ends the chat.\n");
  while (true) {
    if (is_terminal) WriteMessage("> ");
    std::string line;
    std::getline(std::cin, line);
    if (IsInterrupted()) {
      if (is_terminal) WriteMessage("\n");
      return InterruptedStatus();
    }
    if (line.empty()) {
      // Ctrl-D leaves the cursor behind "> ".
      if (is_terminal && std::cin.eof()) WriteMessage("\n");
      return absl::OkStatus();
    }
    messages.push_back({{"role", "user"}, {"content", line}});
    SWITCHYARD_ASSIGN_OR_RETURN(Prompt prompt, RenderChat(options, model, messages));
    const bool opens_reasoning = prompt.opens_reasoning;
    Answer answer;
    SWITCHYARD_RETURN_IF_ERROR(answer.Run(generator, MakeRequest(options, std::move(prompt)),
                                          /*print=*/options.output == "text"));
    SWITCHYARD_RETURN_IF_ERROR(PrintAnswer(options, answer));
    messages.push_back(AssistantMessage(answer.text(), opens_reasoning));
  }
}

absl::Status Run(RunOptions options) {
  if (options.raw && !options.has_prompt) {
    return WithExitCode(InvalidArgument("--raw needs a prompt: -p TEXT"), ExitCode::kUsage);
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const auto model, OpenModel(options.model.path));
  SWITCHYARD_ASSIGN_OR_RETURN(const auto engine, StartEngine(*model, options.model));
  if (IsInterrupted()) return InterruptedStatus();
  if (options.has_prompt) return RunOnce(options, *model, *engine);
  return Chat(options, *model, *engine);
}

void AddSamplingOptions(CLI::App& command, RunOptions& options) {
  command.add_flag("--greedy", options.greedy, "Always take the most likely token");
  const auto add = [&](const char* name, auto& value, const char* description) {
    return command.add_option(name, value, description)->capture_default_str();
  };
  add("--temperature", options.temperature, "Above 1 more variety, below 1 less; 0 = greedy");
  add("--top-k", options.top_k, "Draw from the k most likely tokens; 0 = all");
  add("--top-p", options.top_p, "Draw from the most likely tokens that have this share together");
  add("--min-p", options.min_p, "Draw from tokens at least this likely, relative to the best");
  add("--repetition-penalty", options.repetition_penalty, "Above 1 makes repetition less likely");
  add("--presence-penalty", options.presence_penalty, "Subtracted for tokens already generated");
  add("--frequency-penalty", options.frequency_penalty, "Subtracted for each such occurrence");
}

}  // namespace

void AddRunCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command = app.add_subcommand("run", "Answer one prompt, or chat on the terminal");
  auto options = std::make_shared<RunOptions>();
  // A chat finds its earlier turns again.
  options->model.prefix_cache_bytes = int64_t{1} << 30;
  AddModelOptions(*command, options->model);
  AddGroupOptions(*command, options->model);
  CLI::Option* prompt =
      command->add_option("-p,--prompt", options->prompt, "Prompt; without it, a chat");
  command
      ->add_option("-n,--max-tokens", options->max_tokens,
                   "Tokens to generate (default: until the model ends)")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--system", options->system, "System message");
  command->add_flag("--raw", options->raw, "Take the prompt as it is, without the chat template");
  command->add_option("--thinking", options->thinking, "Let the model reason before it answers")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  command->add_flag("--ignore-eos", options->ignore_eos, "Go on after the model's end token");
  command->add_flag("--stats", options->stats, "Show where the time went, stage by stage");
  command->add_option("--stop", options->stop, "Text that ends the answer; may be repeated");
  AddSamplingOptions(*command, *options);
  CLI::Option* seed =
      command->add_option("--seed", options->seed, "Same seed, same text (default: a new one)");
  AddOutputOption(*command, options->output, {"text", "json"});
  command->footer(
      "Examples:\n  switchyard run model.gguf -p 'Why is the sky blue?' -n 200\n"
      "  switchyard run model.gguf --raw --greedy -p 'Once upon a time,'\n"
      "  switchyard run model.gguf            (a chat)");
  command->callback([&body, options, prompt, seed] {
    options->has_prompt = prompt->count() > 0;
    options->has_seed = seed->count() > 0;
    body = [options] { return Run(*options); };
  });
}

}  // namespace switchyard::app
