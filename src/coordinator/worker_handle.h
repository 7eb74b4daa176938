// A worker as the engine sees it; local, remote and fake forms have this face.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

#include "switchyard/worker/v1/step.pb.h"

namespace switchyard::coordinator {

// What the coordinator may number: fixed when the worker is configured.
struct WorkerCapacity {
  int num_slots = 0;
  int num_pages = 0;
  int num_checkpoints = 0;
  int64_t max_context = 0;  // tokens of one sequence
  int max_step_rows = 0;
  uint64_t epoch = 1;
};

// Threads: Submit() and Stop() from the engine's thread; the callback comes from a thread of the
// worker and must not block.
class WorkerHandle {
 public:
  using ResultCallback = std::function<void(const switchyard::worker::v1::StepResult&)>;

  virtual ~WorkerHandle() = default;
  virtual WorkerCapacity capacity() const = 0;

  // Tells where results go; once, before the first Submit().
  virtual void Start(ResultCallback callback) = 0;

  // Queues a plan; see worker/v1/step.proto. Errors: kInvalidArgument, kUnavailable.
  virtual absl::Status Submit(switchyard::worker::v1::StepPlan plan) = 0;

  virtual void Stop() = 0;
};

}  // namespace switchyard::coordinator
