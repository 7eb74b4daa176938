// inspect: says what is in a model file, and checks it.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "app/command.h"
#include "app/exit_code.h"
#include "app/inspect/inspect_output.h"
#include "app/inspect/inspect_report.h"
#include "app/inspect/verify.h"
#include "app/interrupt.h"
#include "app/terminal.h"
#include "base/progress_bar.h"
#include "base/status_macros.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"

namespace switchyard::app {
namespace {

struct Arguments {
  std::string path;
  bool verify = false;
  bool tensors = false;
  bool metadata = false;
  std::string output;
};

absl::StatusOr<std::vector<VerifyStep>> Verify(const model::GgufFile& file,
                                               const model::ModelSpec& spec) {
  std::optional<ProgressBar> bar;
  return VerifyModel(file, spec, [&](int64_t done, int64_t total) -> absl::Status {
    if (IsInterrupted()) return InterruptedStatus();
    if (!bar.has_value()) bar.emplace("verifying", total, TerminalProgressOptions());
    bar->Set(done);
    return absl::OkStatus();
  });
}

absl::StatusOr<std::string> MakeOutput(const Arguments& arguments) {
  SWITCHYARD_ASSIGN_OR_RETURN(const model::GgufFile file, model::GgufFile::Open(arguments.path));
  SWITCHYARD_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::LoadModelSpec(file));
  SWITCHYARD_ASSIGN_OR_RETURN(const InspectReport report, MakeInspectReport(file, spec));
  std::vector<VerifyStep> steps;
  if (arguments.verify) {
    SWITCHYARD_ASSIGN_OR_RETURN(steps, Verify(file, spec));
  }
  const InspectOutput output = {file,
                                spec,
                                report,
                                arguments.verify ? &steps : nullptr,
                                arguments.tensors,
                                arguments.metadata};
  if (arguments.output == "text") return InspectText(output);
  // Names in a file are any bytes; what is no UTF-8 is replaced.
  return InspectJson(output).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
         "\n";
}

absl::Status Run(const Arguments& arguments) {
  const absl::StatusOr<std::string> text = MakeOutput(arguments);
  if (!text.ok()) return WithExitCode(text.status(), ExitCode::kModelRejected);
  return WriteOutput(*text);
}

}  // namespace

void AddInspectCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command =
      app.add_subcommand("inspect", "Say what is in a model file, how large and how read");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("MODEL", arguments->path, "Model (.gguf), or the first of several files")
      ->required();
  command->add_flag("--verify", arguments->verify,
                    "Check tokenizer and template, and read all data for infinities and NaNs");
  command->add_flag("--tensors", arguments->tensors, "List all tensors");
  command->add_flag("--metadata", arguments->metadata, "List all metadata");
  AddOutputOption(*command, arguments->output, {"text", "json"});
  command->footer(
      "Examples:\n"
      "  switchyard inspect model.gguf\n"
      "  switchyard inspect model-00001-of-00003.gguf --verify\n"
      "  switchyard inspect model.gguf -o json --tensors | jq '.bytes.per_token'");
  command->callback([&body, arguments] { body = [arguments] { return Run(*arguments); }; });
}

}  // namespace switchyard::app
