// A worker as the engine sees it; local, remote and fake forms have this face.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "switchyard/worker/v1/step.pb.h"

namespace switchyard::coordinator {

// What the coordinator may number: decided before the worker starts, the same for its whole life.
struct WorkerCapacity {
  int num_slots = 0;
  int num_pages = 0;
  int num_checkpoints = 0;
  int64_t max_context = 0;  // tokens of one sequence
  int max_step_rows = 0;
  // Steps of different sequences, or chunks of one prompt, that it can work on at the same time:
  // the ranks of a layer split. More than one plan at once is of use to it.
  int pipeline_depth = 1;
};

// What a worker tells the engine.
//
// Call order: OnReady() -> OnResult() ... -> OnLost() -> OnReady() with a higher epoch -> ...
//             OnLost() may also come before the first OnReady(), OnLeaving() once between OnReady()
//             and OnLost().
// Threads:    from threads of the worker, one call after the other; no call blocks.
class WorkerEvents {
 public:
  virtual ~WorkerEvents() = default;

  // The worker takes plans of `epoch` from here on and holds nothing: no slot is in use, no page
  // and no checkpoint is valid. May come from within WorkerHandle::Start().
  virtual void OnReady(uint64_t epoch) = 0;

  // A step has ended. `result` is valid during the call only.
  // REQUIRES: result.error() is empty: a worker that failed by itself is lost.
  virtual void OnResult(const switchyard::worker::v1::StepResult& result) = 0;

  // The worker wants to go: it finishes what runs, should start nothing more, and is lost when
  // nothing runs any more or its patience ends.
  virtual void OnLeaving() = 0;

  // State and all plans under way are lost; no result of the current epoch follows. `returns`:
  // another OnReady() may follow (a restart, a new placement); if false, it never will.
  virtual void OnLost(const absl::Status& status, bool returns) = 0;
};

// Threads: Submit() from the engine's thread; Start() and Stop() from its owner's.
class WorkerHandle {
 public:
  virtual ~WorkerHandle() = default;
  virtual WorkerCapacity capacity() const = 0;

  // Begins; once. `events` must stay valid until Stop() has returned.
  virtual void Start(WorkerEvents& events) = 0;

  // Queues a plan; see worker/v1/step.proto. A plan of another epoch, or one that comes while the
  // worker is lost, is dropped with OK: OnLost() is on its way.
  // Errors: kInvalidArgument, our own bug.
  virtual absl::Status Submit(switchyard::worker::v1::StepPlan plan) = 0;

  // Ends the worker; no event comes after it has returned. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace switchyard::coordinator
