// Which GPUs this process can use, and how they are connected.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace switchyard::device {

struct DeviceInfo {
  int device = 0;  // CUDA ordinal
  std::string name;
  std::string pci_address;  // "0000:41:00.0"
  int compute_capability_major = 0;
  int compute_capability_minor = 0;
  int num_multiprocessors = 0;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // when asked; other processes share it
  std::vector<int> peers;  // devices whose memory this one can read directly
};

// Lists the devices, ascending by ordinal. Empty without a driver or a device, and in a build
// without CUDA: having none is no error.
//
// Errors: kInternal with CUDA's own words if a device that is there does not answer.
absl::StatusOr<std::vector<DeviceInfo>> ListDevices();

}  // namespace switchyard::device
