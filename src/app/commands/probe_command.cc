// probe: measures this machine for `switchyard plan`.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <string>
#include <system_error>

#include "app/bench/bench_options.h"
#include "app/command.h"
#include "app/exit_code.h"
#include "app/output_file.h"
#include "app/plan/stored_profile.h"
#include "app/probe/probe.h"
#include "app/terminal.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "placement/hardware_profile.h"

namespace switchyard::app {
namespace {

struct Arguments {
  std::string profile;
  std::vector<std::string> formats;
  std::vector<std::string> backends = {"shm"};
  ProbeOptions options;
  std::string output;
};

absl::Status Save(const std::string& path, const std::string& json) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  SWITCHYARD_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Create(path));
  SWITCHYARD_RETURN_IF_ERROR(file.Write(json.data(), json.size()));
  return file.Commit();
}

absl::Status Probe(const Arguments& arguments) {
  const std::string path =
      arguments.profile.empty() ? DefaultProfilePath().string() : arguments.profile;
  if (path.empty()) {
    return WithExitCode(InvalidArgument("no place to store the profile: name one with --profile"),
                        ExitCode::kUsage);
  }
  ProbeOptions options = arguments.options;
  if (!arguments.formats.empty()) {
    options.cpu.formats.clear();
    for (const std::string& name : arguments.formats) {
      const auto dtype = DTypeFromName(name);
      if (!dtype.has_value()) {
        return WithExitCode(InvalidArgument("format is unknown: {}, as in: IQ3_S,Q8_0", name),
                            ExitCode::kUsage);
      }
      options.cpu.formats.push_back(*dtype);
    }
  }
  options.backends.clear();
  for (const std::string& name : arguments.backends) {
    options.backends.push_back(name == "ucx" ? comm::BackendKind::kUcx : comm::BackendKind::kShm);
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const placement::v1::HardwareProfile profile,
                              RunProbe(options, [](const std::string& part) {
                                WriteMessage(fmt::format("measuring {}\n", part));
                              }));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string json, placement::ProfileJson(profile));
  SWITCHYARD_RETURN_IF_ERROR(Save(path, json));
  WriteMessage(fmt::format("stored {}\n", path));
  return WriteOutput(arguments.output == "json" ? json : ProfileText(profile));
}

}  // namespace

void AddProbeCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command = app.add_subcommand("probe", "Measure this machine for plan");
  auto arguments = std::make_shared<Arguments>();
  arguments->options.cpu = DefaultCpuRateProbe();
  command->add_option("--profile", arguments->profile,
                      "File to write (default: where plan looks for it)");
  command->add_option("--formats", arguments->formats, "Formats of weights (default: all kernels')")
      ->delimiter(',');
  command
      ->add_option("-t,--threads", arguments->options.cpu.threads,
                   "Numbers of threads (default: 1, 2, 4, ... up to all cores)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  command->add_option("--ranks", arguments->options.ranks, "Numbers of ranks of collectives")
      ->delimiter(',')
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  command->add_option("--backends", arguments->backends, "Backends of collectives")
      ->delimiter(',')
      ->check(CLI::IsMember({"shm", "ucx"}))
      ->capture_default_str();
  command
      ->add_option("-r,--repetitions", arguments->options.cpu.repetitions,
                   "Repetitions, after one warm-up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      ->add_option("--seconds", arguments->options.collective_seconds,
                   "Time for each collective and size")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  AddBytesFlag(*command, "--bytes", arguments->options.cpu.array_bytes, 1,
               "Size of the array that is read (default: as for bench membw)");
  command
      ->add_option("--max-foreign", arguments->options.cpu.max_foreign_cpus,
                   "CPUs that others may use meanwhile; what saw more is measured again, or marked")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  AddOutputOption(*command, arguments->output, {"md", "json"});
  command->footer(
      "Measures read bandwidth, kernels by format, forks and joins, and collectives between ranks "
      "of\n"
      "this host; medians with spread, results checked. What is not measured is left out.\n"
      "Examples:\n"
      "  switchyard probe\n"
      "  switchyard probe --profile machine.json --formats Q8_0,IQ3_S,IQ4_NL --ranks 2,4");
  command->callback([&body, arguments] { body = [arguments] { return Probe(*arguments); }; });
}

}  // namespace switchyard::app
