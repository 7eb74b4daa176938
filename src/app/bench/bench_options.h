// What the parts of `bench` share: flags, and the object that each run prints.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "app/command.h"
#include "kernels/cpu/cpu_features.h"

namespace switchyard::app {

// Each adds its part to the command `bench`; when that is chosen, `body` is set.
void AddMembwBench(CLI::App& bench, CommandBody& body);
void AddGemvBench(CLI::App& bench, CommandBody& body);
void AddGemmBench(CLI::App& bench, CommandBody& body);
void AddDecodeBench(CLI::App& bench, CommandBody& body);
void AddPrefillBench(CLI::App& bench, CommandBody& body);
void AddPoolBench(CLI::App& bench, CommandBody& body);
void AddResidencyBench(CLI::App& bench, CommandBody& body);

struct BenchOptions {
  std::vector<int> threads;         // empty = a sweep
  std::vector<std::string> levels;  // empty = the best of this machine
  int repetitions = 10;
  double max_foreign_cpus = 0.1;
  std::string output;
};

// Adds the flags of BenchOptions to `command`.
void AddBenchFlags(CLI::App& command, BenchOptions& options);

// Adds a flag that takes a size such as 1GiB, at least `least`.
void AddBytesFlag(CLI::App& command, const std::string& name, int64_t& value, int64_t least,
                  const std::string& description);

// Adds a flag that takes a list of counts of at least 1.
CLI::Option* AddCountsFlag(CLI::App& command, const std::string& names, std::vector<int>& values,
                           const std::string& description);

// The levels asked for, as a list without repetition.
// Errors: kInvalidArgument with the exit code of unfit hardware for a level this machine lacks.
absl::StatusOr<std::vector<kernels::cpu::CpuLevel>> LevelsOf(const BenchOptions& options);

// The threads asked for; else 1, 2, 4 ... up to what the machine allows this process.
std::vector<int> ThreadsOf(const BenchOptions& options);

// One run as an object: {"benchmark", "version", "build", "machine", "rows"}. Rows are objects that
// all have the same keys.
nlohmann::ordered_json BenchReport(const std::string& name, nlohmann::ordered_json rows);

// Writes a report: JSON, or a table whose columns are `columns` of the rows ("gb_per_second.median"
// names a member of a member), below a line on the machine.
absl::Status WriteBenchReport(const nlohmann::ordered_json& report, const BenchOptions& options,
                              const std::vector<std::string>& columns);

}  // namespace switchyard::app
