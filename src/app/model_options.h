// Flags that every command which runs a model shares.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace switchyard::app {

struct ModelOptions {
  std::string path;
  std::string device = "cpu";   // or "reference"
  int num_threads = 0;          // 0 = as many as the machine allows this process
  std::string cpu_level;        // empty = the best that the machine allows
  std::string kv_type = "f16";  // or "f32", "q8_0"
  int64_t context = 0;          // tokens; 0 = the model's, at most kDefaultContext
  int num_slots = 1;
  int64_t prefix_cache_bytes = 0;  // 0 = no prefix is kept
  int chunk_tokens = 512;          // rows of a step
  bool huge_pages = true;
  std::string recode = "auto";
  int64_t host_expert_bytes = -1;  // of experts in memory; negative = all
  std::string expert_profile;      // file of their use counts; empty = none
  std::string core_claims_folder;  // empty = the user's; see core_claims.h

  // Worker processes that compute together; 0 = one worker, in this process.
  int num_workers = 0;
  std::string mode;             // empty = placement_options.h chooses
  std::string partition;        // of the experts: "whole" or "sliced"; empty = sliced
  std::string dense;            // "replicated" or "owner"; empty = replicated
  std::vector<int> layer_cuts;  // empty = by bytes
  bool check_ranks = false;
};

// The cache takes address space for the whole context, so the default is bounded.
inline constexpr int64_t kDefaultContext = 32768;

// Adds `MODEL` and the flags to `command`. Values are checked while flags are read.
void AddModelOptions(CLI::App& command, ModelOptions& options);

// Adds only the flags that choose a backend: device, threads, level.
void AddBackendOptions(CLI::App& command, ModelOptions& options);

// Adds only the flags that say where and how fast to compute (for commands with a MODEL of their
// own form).
void AddDeviceOptions(CLI::App& command, ModelOptions& options);

// Adds `--workers` and the flags that say how several divide the model. Returns the former.
CLI::Option* AddGroupOptions(CLI::App& command, ModelOptions& options);

// Adds only how several workers divide the model.
void AddModeOptions(CLI::App& command, ModelOptions& options);

}  // namespace switchyard::app
