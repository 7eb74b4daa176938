#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <optional>

#include "app/command.h"
#include "app/exit_code.h"
#include "app/experiment/experiment_run.h"
#include "app/input_file.h"
#include "app/interrupt.h"
#include "app/output_file.h"
#include "app/terminal.h"
#include "base/progress_bar.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

struct ExperimentOptions {
  std::string input;
  std::string output;
  bool lists_only = false;
};

std::string ListText(const std::vector<Combination>& combinations) {
  std::string text;
  for (const Combination& combination : combinations) {
    text += Describe(combination.topology);
    if (combination.condition.is_disturbed()) text += "; " + combination.condition.name;
    if (!combination.refusal.empty()) text += ": cannot run: " + combination.refusal;
    text += "\n";
  }
  return text;
}

absl::Status RunExperimentFile(const ExperimentOptions& options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadInputFile(options.input));
  const auto spec = ParseExperiment(text, options.input);
  if (!spec.ok()) return WithExitCode(spec.status(), ExitCode::kUsage);
  if (options.lists_only) return WriteOutput(ListText(Enumerate(*spec)));
  const std::string output = options.output.empty()
                                 ? std::filesystem::path(options.input).stem().string() + ".json"
                                 : options.output;
  // Hours of measurements must not end at a folder that there is not.
  SWITCHYARD_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(output));
  ExperimentRunOptions run;
  run.is_interrupted = [] { return IsInterrupted(); };
  std::optional<ProgressBar> bar;
  run.on_progress = [&bar](int64_t num_starts, int64_t number) {
    if (!bar) {
      bar.emplace("measuring", num_starts, TerminalProgressOptions(ProgressBar::Unit::kTokens));
    }
    bar->Set(number);
  };
  const auto result = RunExperiment(*spec, run);
  bar.reset();
  if (IsInterrupted()) return InterruptedStatus();
  SWITCHYARD_RETURN_IF_ERROR(result.status());
  nlohmann::ordered_json json = ToJson(*result);
  json["diagnosis"] = DiagnosisJson(*result);
  const std::string written = json.dump() + "\n";
  SWITCHYARD_RETURN_IF_ERROR(file.Write(written.data(), written.size()));
  SWITCHYARD_RETURN_IF_ERROR(file.Commit());
  SWITCHYARD_RETURN_IF_ERROR(WriteOutput(ResultTable(*result)));
  for (const CombinationResult& entry : result->runs) {
    if (entry.status == "failed") {
      return Unavailable("a combination broke while it ran: {}: {}",
                         Describe(entry.combination.topology), entry.reason);
    }
  }
  return absl::OkStatus();
}

}  // namespace

void AddExperimentCommand(CLI::App& app, CommandBody& body) {
  CLI::App* experiment =
      app.add_subcommand("experiment", "Measure ways to spread a model over workers");
  experiment->require_subcommand(1);
  CLI::App* command = experiment->add_subcommand("run", "Run what a TOML file describes");
  auto options = std::make_shared<ExperimentOptions>();
  command->add_option("FILE", options->input, "TOML file")->required();
  command->add_option("-o,--output", options->output,
                      "JSON file for every sample (default: the name of FILE with .json)");
  command->add_flag("--list", options->lists_only, "List the combinations and run none");
  command->footer(
      "Starts a server and worker processes for each combination, again for each repetition.\n"
      "Examples:\n  switchyard experiment run deploy/experiments/modes.toml -o modes.json\n"
      "  switchyard report modes.json -o modes.html");
  command->callback([&body, options] { body = [options] { return RunExperimentFile(*options); }; });
}

}  // namespace switchyard::app
