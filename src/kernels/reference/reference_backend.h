// The backend that is the truth in tests: scalar, sums in double, weights exactly as in the file,
// activations never quantised. Also a device that can be chosen.
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace switchyard::kernels::reference {

// Makes a reference backend. It takes every DType and every KvType; what a cache cannot hold is
// told by CheckKvLayout(). Threads: runs on the caller's thread only.
std::unique_ptr<Backend> CreateReferenceBackend();

}  // namespace switchyard::kernels::reference
