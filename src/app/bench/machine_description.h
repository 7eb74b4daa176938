// The machine that a measurement ran on, for its report.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/cpu_topology.h"

namespace switchyard::app {

struct CpuCache {
  int level = 0;
  std::string type;  // "Data", "Instruction", "Unified"
  int64_t bytes = 0;
  std::string cpus;  // that share it, as Linux lists them: "0-7"
};

struct MachineDescription {
  std::string cpu_model;  // as /proc/cpuinfo names it; may be as vague as a hypervisor likes
  int cpu_family = 0;
  int cpu_model_number = 0;
  int num_cpus_online = 0;
  CpuBudget budget;
  std::vector<CpuCache> caches;  // of the first CPU
  int64_t memory_bytes = 0;
  int64_t available_bytes = 0;
  std::string kernel;
  std::string huge_pages;  // setting of transparent huge pages

  // Bytes of the largest cache; where none is shown, a guess that errs towards more.
  int64_t last_level_cache_bytes() const;
};

// Reads it. What the system does not show stays empty. `root` is where the file system starts: "/",
// or a made-up tree in tests.
MachineDescription ReadMachineDescription(const std::filesystem::path& root);

nlohmann::ordered_json ToJson(const MachineDescription& machine);

}  // namespace switchyard::app
