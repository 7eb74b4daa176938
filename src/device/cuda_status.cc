#include "device/cuda_status.h"

#include "base/status.h"

namespace switchyard::device {

absl::Status ToStatus(cudaError_t error, std::string_view attempted) {
  if (error == cudaSuccess) return absl::OkStatus();
  if (error == cudaErrorMemoryAllocation) {
    return ResourceExhausted("device memory is short: {}", attempted);
  }
  return Internal("CUDA failed to {}: {} ({})", attempted, cudaGetErrorName(error),
                  cudaGetErrorString(error));
}

}  // namespace switchyard::device
