// CUDA's errors as absl::Status.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include <cuda_runtime_api.h>

namespace switchyard::device {

// Returns OK for cudaSuccess; else a status that says what was attempted, and CUDA's name and words
// for what came of it: kResourceExhausted when memory is short, kInternal otherwise.
absl::Status ToStatus(cudaError_t error, std::string_view attempted);

}  // namespace switchyard::device
