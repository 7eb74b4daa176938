// The coordinator's loop: admit, schedule, hand plans to the worker, deliver what comes back.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "base/clock.h"
#include "coordinator/generator.h"
#include "coordinator/scheduler.h"
#include "coordinator/worker_handle.h"
#include "model/tokenizer.h"

namespace switchyard::coordinator {

struct EngineOptions {
  SchedulerOptions scheduler{};
  // Steps that a plan may run without another one. Longer saves messages; a cancellation never
  // waits for more than one step whatever the value.
  int run_ahead = 16;
  int max_waiting = 256;  // generations that may wait for a slot
  const Clock* clock = &MonotonicClock::Get();
};

// Counters since the start, for logs and tests. Consistent with each other at any one moment.
struct EngineStats {
  int64_t num_steps = 0;
  int64_t num_plans = 0;
  int64_t prompt_tokens = 0;  // evaluated, without the reused ones
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int num_running = 0;
  int num_waiting = 0;
  int num_free_pages = 0;
  int num_checkpoints = 0;  // prefixes that can be reused
};

// Continuous batching over one worker: one running sequence is a batch of one.
//
// All sequences live on the engine's own thread. Results of the worker, starts and cancellations
// reach it as messages, so no lock is held while anything is decided or delivered.
class Engine : public Generator {
 public:
  // `tokenizer` must outlive the engine. Ids of end tokens come from it.
  Engine(std::unique_ptr<WorkerHandle> worker, const model::Tokenizer& tokenizer,
         const EngineOptions& options);

  // Cancels what runs, delivers the last events and stops the worker.
  ~Engine() override;

  absl::StatusOr<uint64_t> Start(GenerationRequest request, EventCallback callback) override;
  void Cancel(uint64_t id) override;

  EngineStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::coordinator
