// A build without CUDA has no devices.
#include "device/device_info.h"

namespace switchyard::device {

absl::StatusOr<std::vector<DeviceInfo>> ListDevices() { return std::vector<DeviceInfo>(); }

}  // namespace switchyard::device
