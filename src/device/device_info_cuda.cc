#include <array>

#include <cuda_runtime_api.h>

#include "base/status_macros.h"
#include "device/cuda_status.h"
#include "device/device_info.h"

namespace switchyard::device {
namespace {

absl::StatusOr<DeviceInfo> Describe(int device, int num_devices) {
  cudaDeviceProp properties;
  SWITCHYARD_RETURN_IF_ERROR(
      ToStatus(cudaGetDeviceProperties(&properties, device), "get device properties"));
  DeviceInfo info;
  info.device = device;
  info.name = properties.name;
  info.compute_capability_major = properties.major;
  info.compute_capability_minor = properties.minor;
  info.num_multiprocessors = properties.multiProcessorCount;
  info.total_bytes = static_cast<int64_t>(properties.totalGlobalMem);

  std::array<char, 32> address;
  SWITCHYARD_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetPCIBusId(address.data(), address.size(), device), "get PCI address"));
  info.pci_address = address.data();

  // Asking for the free memory needs the device's context, and makes it current for this thread.
  int current = 0;
  SWITCHYARD_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&current), "get device"));
  SWITCHYARD_RETURN_IF_ERROR(ToStatus(cudaSetDevice(device), "set device"));
  size_t free_bytes = 0, total_bytes = 0;
  const absl::Status memory =
      ToStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "get free memory");
  SWITCHYARD_RETURN_IF_ERROR(ToStatus(cudaSetDevice(current), "set device"));
  SWITCHYARD_RETURN_IF_ERROR(memory);
  info.free_bytes = static_cast<int64_t>(free_bytes);

  for (int peer = 0; peer < num_devices; ++peer) {
    int can_access = 0;
    if (peer == device) continue;
    SWITCHYARD_RETURN_IF_ERROR(
        ToStatus(cudaDeviceCanAccessPeer(&can_access, device, peer), "ask for peer access"));
    if (can_access != 0) info.peers.push_back(peer);
  }
  return info;
}

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> ListDevices() {
  int num_devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&num_devices);
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
    cudaGetLastError();  // clears it: a later launch must not report this one
    return std::vector<DeviceInfo>();
  }
  SWITCHYARD_RETURN_IF_ERROR(ToStatus(error, "count devices"));
  std::vector<DeviceInfo> devices;
  for (int device = 0; device < num_devices; ++device) {
    SWITCHYARD_ASSIGN_OR_RETURN(DeviceInfo info, Describe(device, num_devices));
    devices.push_back(std::move(info));
  }
  return devices;
}

}  // namespace switchyard::device
