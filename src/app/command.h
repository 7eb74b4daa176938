// How a subcommand hooks into the program.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace switchyard::app {

// What the chosen subcommand does once all flags are read. Data goes to stdout, all else to stderr.
// The status's exit code (exit_code.h) becomes the program's; its message is printed as one line.
using CommandBody = std::function<absl::Status()>;

// Each adds its subcommand to `app`; when that is chosen, `body` is set.
void AddRunCommand(CLI::App& app, CommandBody& body);
void AddInspectCommand(CLI::App& app, CommandBody& body);
void AddTokenizeCommand(CLI::App& app, CommandBody& body);
void AddEvalCommand(CLI::App& app, CommandBody& body);
void AddBenchCommand(CLI::App& app, CommandBody& body);
void AddServeCommand(CLI::App& app, CommandBody& body);
void AddBenchServeCommand(CLI::App& app, CommandBody& body);
void AddSweepCommand(CLI::App& app, CommandBody& body);
void AddExperimentCommand(CLI::App& app, CommandBody& body);
void AddReportCommand(CLI::App& app, CommandBody& body);
void AddDoctorCommand(CLI::App& app, CommandBody& body);
void AddResidencyCommand(CLI::App& app, CommandBody& body);
void AddSynthCommand(CLI::App& app, CommandBody& body);
void AddPlanCommand(CLI::App& app, CommandBody& body);
void AddProbeCommand(CLI::App& app, CommandBody& body);
void AddWorkerCommand(CLI::App& app, CommandBody& body);
void AddVersionCommand(CLI::App& app, CommandBody& body);
void AddCompletionCommand(CLI::App& app, CommandBody& body);

// Adds `-o, --output` with the allowed formats, the first being the default.
void AddOutputOption(CLI::App& command, std::string& output,
                     const std::vector<std::string>& formats);

}  // namespace switchyard::app
