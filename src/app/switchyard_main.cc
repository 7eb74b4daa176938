// The one binary.
#include <CLI/CLI.hpp>
#include <exception>
#include <fmt/format.h>
#include <new>

#include "app/command.h"
#include "app/exit_code.h"
#include "app/interrupt.h"
#include "app/terminal.h"
#include "app/version.h"
#include "base/log.h"
#include "base/status.h"

namespace switchyard::app {
namespace {

// One line that says what is wrong and where to read on.
std::string UsageError(const CLI::App* app, const CLI::Error& error) {
  const auto chosen = app->get_subcommands();
  if (chosen.empty() && !app->remaining().empty()) {
    return fmt::format("switchyard: no such command: {} (try: switchyard --help)\n",
                       app->remaining().front());
  }
  return fmt::format("switchyard: {} (try: switchyard {}--help)\n", error.what(),
                     chosen.empty() ? "" : chosen.front()->get_name() + " ");
}

// Libraries may throw; what they throw ends the program like any other error.
absl::Status RunBody(const CommandBody& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return WithExitCode(ResourceExhausted("not enough memory"), ExitCode::kHardwareUnfit);
  } catch (const std::exception& error) {
    return Internal("{}", error.what());
  }
}

int Main(int argc, char** argv) {
  OpenStandardStreams(argv);
  CLI::App app("Switchyard: inference for mixture-of-experts models", "switchyard");
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of all commands");
  app.set_version_flag("--version", std::string(Version()));
  app.set_config("--config", "", "TOML file with values for flags; flags given here win")
      ->envname("SWITCHYARD_CONFIG");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.failure_message(&UsageError);
  bool verbose = false;
  bool quiet = false;
  app.add_flag("-v,--verbose", verbose, "Log more");
  app.add_flag("-q,--quiet", quiet, "Log warnings and errors only");
  app.fallthrough();

  CommandBody body;
  AddRunCommand(app, body);
  AddServeCommand(app, body);
  AddInspectCommand(app, body);
  AddTokenizeCommand(app, body);
  AddEvalCommand(app, body);
  AddBenchCommand(app, body);
  AddBenchServeCommand(app, body);
  AddSweepCommand(app, body);
  AddExperimentCommand(app, body);
  AddReportCommand(app, body);
  AddDoctorCommand(app, body);
  AddResidencyCommand(app, body);
  AddSynthCommand(app, body);
  AddPlanCommand(app, body);
  AddProbeCommand(app, body);
  AddWorkerCommand(app, body);
  AddVersionCommand(app, body);
  AddCompletionCommand(app, body);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool is_help = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    app.exit(error);
    return static_cast<int>(is_help ? ExitCode::kOk : ExitCode::kUsage);
  }
  LogOptions log_options;
  log_options.threshold = quiet ? LogLevel::kWarning : verbose ? LogLevel::kDebug : LogLevel::kInfo;
  log_options.color = UseColor();
  InitLogging(log_options);
  InstallInterruptHandlers();

  const absl::Status status = RunBody(body);
  if (!status.ok()) WriteMessage(fmt::format("switchyard: {}\n", Message(status)));
  return static_cast<int>(ExitCodeOf(status));
}

}  // namespace
}  // namespace switchyard::app

int main(int argc, char** argv) { return switchyard::app::Main(argc, argv); }
