#include "app/bench/bench_options.h"

#include <algorithm>
#include <fmt/format.h>

#include "app/bench/machine_description.h"
#include "app/engine_setup.h"
#include "app/exit_code.h"
#include "app/terminal.h"
#include "app/version.h"
#include "base/status.h"
#include "base/units.h"

namespace switchyard::app {
namespace {

using kernels::cpu::CpuLevel;

// The value of "a.b" in a row, as text for a table.
std::string Cell(const nlohmann::ordered_json& row, const std::string& column) {
  const nlohmann::ordered_json* value = &row;
  for (size_t begin = 0; begin <= column.size();) {
    const size_t end = std::min(column.find('.', begin), column.size());
    const auto member = value->find(column.substr(begin, end - begin));
    if (member == value->end()) return "";
    value = &*member;
    begin = end + 1;
  }
  if (value->is_string()) return value->get<std::string>();
  if (value->is_boolean()) return value->get<bool>() ? "yes" : "no";
  if (value->is_number_integer()) return fmt::format("{}", value->get<int64_t>());
  if (!value->is_number()) return "";
  const double number = value->get<double>();
  return fmt::format("{:.{}f}", number, number >= 100 ? 1 : number >= 10 ? 2 : 3);
}

std::string Table(const nlohmann::ordered_json& report, const std::vector<std::string>& columns) {
  const nlohmann::ordered_json& machine = report["machine"];
  std::string out = fmt::format(
      "{}: {}, {} of {} cores, switchyard {}\n\n", report["benchmark"].get<std::string>(),
      machine["cpu"].get<std::string>(), machine["cores_allowed"].get<int>(),
      machine["cpus_online"].get<int>(), report["version"].get<std::string>());
  std::string rule = "|";
  out += "|";
  for (const std::string& column : columns) {
    out += fmt::format(" {} |", column);
    rule += " --- |";
  }
  out += "\n" + rule + "\n";
  for (const nlohmann::ordered_json& row : report["rows"]) {
    out += "|";
    for (const std::string& column : columns) out += fmt::format(" {} |", Cell(row, column));
    out += "\n";
  }
  return out;
}

}  // namespace

void AddBenchFlags(CLI::App& command, BenchOptions& options) {
  AddCountsFlag(command, "-t,--threads", options.threads, "Threads; a list makes a sweep")
      ->check(CLI::Range(1, 1024))
      ->envname("SWITCHYARD_THREADS");
  command
      .add_option("--cpu-level", options.levels,
                  "Instruction sets of the kernels; a list (default: the best of this machine)")
      ->delimiter(',')
      ->check(CLI::IsMember({"scalar", "avx2", "avxvnni", "avx512vnni"}))
      ->envname("SWITCHYARD_CPU_LEVEL");
  command.add_option("-r,--repetitions", options.repetitions, "Repetitions, after one warm-up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      .add_option("--max-foreign", options.max_foreign_cpus,
                  "CPUs that others may use meanwhile; what saw more is measured again, or marked")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  AddOutputOption(command, options.output, {"md", "json"});
}

void AddBytesFlag(CLI::App& command, const std::string& name, int64_t& value, int64_t least,
                  const std::string& description) {
  command
      .add_option_function<std::string>(
          name,
          [&value, name, least](const std::string& text) {
            const auto bytes = ParseBytes(text);
            if (!bytes.ok()) {
              throw CLI::ValidationError(name, std::string(Message(bytes.status())));
            }
            if (*bytes < least) {
              throw CLI::ValidationError(
                  name, fmt::format("wants at least {} bytes, got: {}", least, text));
            }
            value = *bytes;
          },
          description)
      ->type_name("BYTES");
}

CLI::Option* AddCountsFlag(CLI::App& command, const std::string& names, std::vector<int>& values,
                           const std::string& description) {
  return command.add_option(names, values, description)
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
}

absl::StatusOr<std::vector<CpuLevel>> LevelsOf(const BenchOptions& options) {
  if (options.levels.empty()) return std::vector<CpuLevel>{kernels::cpu::DetectCpuLevel()};
  std::vector<CpuLevel> levels;
  for (const std::string& name : options.levels) {
    const auto level = kernels::cpu::CpuLevelFromName(name);
    if (!level || !RunsCpuLevel(*level)) {
      return WithExitCode(InvalidArgument("this machine cannot run CPU level {}; its best is {}",
                                          name, CpuLevelName(kernels::cpu::DetectCpuLevel())),
                          ExitCode::kHardwareUnfit);
    }
    if (std::find(levels.begin(), levels.end(), *level) == levels.end()) levels.push_back(*level);
  }
  return levels;
}

std::vector<int> ThreadsOf(const BenchOptions& options) {
  if (!options.threads.empty()) return options.threads;
  const int most = DefaultNumThreads();
  std::vector<int> threads;
  for (int count = 1; count < most; count *= 2) threads.push_back(count);
  threads.push_back(most);
  return threads;
}

nlohmann::ordered_json BenchReport(const std::string& name, nlohmann::ordered_json rows) {
  return {{"benchmark", name},
          {"version", Version()},
          {"build", BuildDescription()},
          {"machine", ToJson(ReadMachineDescription("/"))},
          {"rows", std::move(rows)}};
}

absl::Status WriteBenchReport(const nlohmann::ordered_json& report, const BenchOptions& options,
                              const std::vector<std::string>& columns) {
  if (options.output == "json") return WriteOutput(report.dump() + "\n");
  return WriteOutput(Table(report, columns));
}

}  // namespace switchyard::app
