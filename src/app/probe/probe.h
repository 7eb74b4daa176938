// Probe: measures this machine and makes a hardware profile of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "app/probe/collective_probe.h"
#include "app/probe/cpu_rates.h"

namespace switchyard::app {

struct ProbeOptions {
  CpuRateProbe cpu;
  std::vector<int> ranks = {2, 3, 4};  // numbers of ranks for collectives
  std::vector<comm::BackendKind> backends = {comm::BackendKind::kShm};
  double collective_seconds = 0.15;  // of each operation and size
};

// Called before each part, with what is measured next.
using ProbeProgress = std::function<void(const std::string& part)>;

// Collectives are measured for ranks that each have their share of the cores, and one thread.
//
// Errors: as the parts; kInternal for collectives with wrong results.
absl::StatusOr<placement::v1::HardwareProfile> RunProbe(const ProbeOptions& options,
                                                        const ProbeProgress& progress);

// Tables in Markdown.
std::string ProfileText(const placement::v1::HardwareProfile& profile);

}  // namespace switchyard::app
