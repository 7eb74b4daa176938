// The backend that is the truth in tests: scalar, sums in double, weights exactly as in the file,
// activations never quantised. Also a device that can be chosen.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/backend.h"

namespace switchyard::kernels::reference {

struct ReferenceOptions {
  // Matrices are decoded at load while all decoded values together take at most this much, so that
  // small models run without decoding in a step and large ones do not grow fourfold. Others stay
  // as they are in the file; results are the same.
  int64_t max_decoded_bytes = int64_t{1} << 30;
};

// Makes a reference backend. It takes every DType and every KvType; what a cache cannot hold is
// told by CheckKvLayout(). Threads: runs on the caller's thread only.
std::unique_ptr<Backend> CreateReferenceBackend(const ReferenceOptions& options = {});

}  // namespace switchyard::kernels::reference
