// How long collectives take between ranks of this host, in chains as decoding sends them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "switchyard/placement/v1/hardware_profile.pb.h"

#include "comm/communicator.h"

namespace switchyard::app {

struct CollectiveProbe {
  comm::BackendKind backend = comm::BackendKind::kShm;
  int nranks = 2;
  int threads_per_rank = 1;    // that would compute: they decide how a rank waits
  std::vector<int64_t> sizes;  // bytes; multiples of 8
  double seconds = 0.15;       // of each operation and size
};

// Sizes from a few bytes to what a prefill chunk sends.
std::vector<int64_t> DefaultCollectiveSizes();

// Measures all-reduces; broadcasts followed by reductions to the same root (each counts as half of
// the pair); and, in a group of two, messages there and back (one way is half). Each operation
// starts when the one before has ended. Ranks are threads of this process, which wait as processes
// do; results are checked.
//
// Errors: those of the backend; kInternal does not occur for wrong results: `wrong` counts them.
absl::StatusOr<std::vector<placement::v1::Collective>> MeasureCollectives(
    const CollectiveProbe& probe);

}  // namespace switchyard::app
