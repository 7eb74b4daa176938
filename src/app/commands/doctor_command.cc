#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/doctor/machine_checks.h"
#include "app/exit_code.h"
#include "app/terminal.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

std::string_view Name(CheckResult result) {
  switch (result) {
    case CheckResult::kOk:
      return "ok";
    case CheckResult::kWarn:
      return "warn";
    case CheckResult::kFail:
      return "fail";
  }
  return "";
}

std::string Text(const std::vector<MachineCheck>& checks) {
  std::string out;
  for (const MachineCheck& check : checks) {
    out += fmt::format("{:<5}{}: {}\n", Name(check.result), check.subject, check.finding);
    if (!check.fix.empty()) out += fmt::format("     fix: {}\n", check.fix);
  }
  return out;
}

std::string Json(const std::vector<MachineCheck>& checks) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const MachineCheck& check : checks) {
    json.push_back({{"subject", check.subject},
                    {"result", Name(check.result)},
                    {"finding", check.finding},
                    {"fix", check.fix}});
  }
  return json.dump(1) + "\n";
}

absl::Status Doctor(std::optional<int> num_threads, const std::string& output) {
  SWITCHYARD_ASSIGN_OR_RETURN(MachineFacts facts, ReadMachineFacts());
  facts.asked_threads = num_threads;
  const std::vector<MachineCheck> checks = CheckMachine(facts);
  SWITCHYARD_RETURN_IF_ERROR(WriteOutput(output == "json" ? Json(checks) : Text(checks)));
  for (const MachineCheck& check : checks) {
    if (check.result != CheckResult::kFail) continue;
    return WithExitCode(FailedPrecondition("{}: {}", check.subject, check.finding),
                        ExitCode::kHardwareUnfit);
  }
  return absl::OkStatus();
}

}  // namespace

void AddDoctorCommand(CLI::App& app, CommandBody& body) {
  CLI::App* command = app.add_subcommand("doctor", "Check what this machine offers");
  auto output = std::make_shared<std::string>();
  auto num_threads = std::make_shared<std::optional<int>>();
  command->add_option("-t,--threads", *num_threads, "Threads that you mean to use")
      ->check(CLI::Range(1, 1024))
      ->envname("SWITCHYARD_THREADS");
  AddOutputOption(*command, *output, {"text", "json"});
  command->callback([&body, output, num_threads] {
    body = [output, num_threads] { return Doctor(*num_threads, *output); };
  });
}

}  // namespace switchyard::app
