// What about this machine helps or hinders: one line a matter, with what to do about it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/cpu_topology.h"
#include "device/device_info.h"
#include "kernels/cpu/cpu_features.h"

namespace switchyard::app {

enum class CheckResult {
  kOk,
  kWarn,  // works, but slower or less than the machine could
  kFail,  // does not work
};

struct MachineCheck {
  std::string subject;  // "cpu level"
  CheckResult result = CheckResult::kOk;
  std::string finding;
  std::string fix;  // empty unless there is something to do
};

// What the checks look at. `root` is where the file system starts: "/", or a made-up tree in tests.
struct MachineFacts {
  std::string root = "/";
  kernels::cpu::CpuLevel cpu_level = kernels::cpu::CpuLevel::kScalar;
  CpuBudget budget;
  std::optional<int> asked_threads;
  std::vector<int> numa_nodes;            // of the allowed cores, ascending
  std::optional<int64_t> memory_bytes;    // that new allocations can take
  std::optional<uint64_t> memlock_bytes;  // absent = unlimited
  bool has_cuda = false;                  // in this build
  std::vector<device::DeviceInfo> devices;
};

// Facts of this machine and process. Errors: what device::ListDevices() returns.
absl::StatusOr<MachineFacts> ReadMachineFacts();

std::vector<MachineCheck> CheckMachine(const MachineFacts& facts);

}  // namespace switchyard::app
