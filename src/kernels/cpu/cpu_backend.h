// The forward pass on CPU cores: vectorised, on a pool of an explicit number of threads.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/cpu_topology.h"
#include "base/thread_calibration.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_features.h"

namespace switchyard::kernels::cpu {

// Whether IQ3_S and IQ3_XXS are kept as panels of 4-bit codes, which lose nothing, take a quarter
// more bytes and are several times faster. Results are the same bits either way.
enum class Recode {
  kAuto,   // if all weights then fit comfortably into the memory that is free
  kNever,  // as stored: for hosts that just hold the file
  kAlways,
};

// How many threads shall run once the weights are loaded; loading takes all of the pool.
struct ThreadSweep {
  std::vector<int> counts{};  // how fast these read the weights is measured then; may be empty
  // Takes the rates in the order of `counts` and returns the number. Null = all threads run.
  std::function<int(absl::Span<const ThreadRate>)> choose{};
};

struct CpuBackendOptions {
  int num_threads = 1;  // the step thread included
  // Core of each thread; empty = not pinned. BindStepThread() applies entry 0.
  std::vector<CpuCore> cores{};
  CpuLevel level = DetectCpuLevel();
  bool huge_pages = false;  // ask for 2 MiB pages for the weights
  Recode recode = Recode::kAuto;
  // Done once, by the first Prepare().
  ThreadSweep sweep{};
  std::shared_ptr<void> claims{};  // kept as long as the backend: what gives it its cores
};

// Makes a backend. Results are the same bits for every number of threads and every level.
//
// Errors: kInvalidArgument (no thread, or a CPU list of another length), kFailedPrecondition (this
// machine does not run the level).
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuBackendOptions& options);

}  // namespace switchyard::kernels::cpu
