// What an experiment is: a TOML file that names a model, topologies, prompts and disturbances.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace switchyard::app {

// Lists of which every combination is tried.
struct TopologyMatrix {
  std::vector<int> workers = {1};
  std::vector<std::string> modes = {"single"};
  std::vector<std::string> partitions{};    // empty = as the mode has it
  std::vector<std::string> dense{};         // empty = as the mode has it
  std::vector<std::string> layer_splits{};  // cut points as serve takes them; empty = automatic
  std::vector<int> threads = {1};           // of each worker
};

// What disturbs a run on purpose.
struct Condition {
  std::string name = "undisturbed";
  std::string link_rules{};  // of the fault injector (comm/fault_injector.h); empty = none
  int competitor_rank = -1;  // a busy process on this rank's first CPU; -1 = none

  bool is_disturbed() const { return !link_rules.empty() || competitor_rank >= 0; }
};

struct ExperimentSpec {
  std::string name;
  std::string model;    // path, relative ones from the folder of the file
  int max_tokens = 32;  // of each answer
  int repetitions = 5;
  int warmup = 1;  // answers before the first measured one of each start
  bool prefix_hits = true;
  bool pin_workers = true;           // each rank on CPUs of its own, as far as there are enough
  uint64_t seed = 1;                 // of random prompts
  std::vector<int> contexts;         // lengths of random prompts, in tokens
  std::vector<std::string> prompts;  // texts
  std::vector<TopologyMatrix> topologies;
  std::vector<Condition> conditions;     // the undisturbed one first
  std::vector<std::string> serve_flags;  // handed to every server
};

inline constexpr int kMaxExperimentWorkers = 64;

// Reads the text of a file; `path` is for messages and relative names.
// Errors: kInvalidArgument with file and line; an unknown key, with the nearest known one.
absl::StatusOr<ExperimentSpec> ParseExperiment(std::string_view text, const std::string& path);

// The entry of `known` with the fewest changed, missing or added letters.
// REQUIRES: known is not empty.
std::string Nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace switchyard::app
