// The coordinator's loop: admit, schedule, hand plans to the worker, deliver what comes back.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "base/clock.h"
#include "coordinator/generator.h"
#include "coordinator/scheduler.h"
#include "coordinator/slot_info.h"
#include "coordinator/step_costs.h"
#include "coordinator/worker_handle.h"
#include "model/tokenizer.h"

namespace switchyard::coordinator {

// What becomes of running generations when the worker is lost and may return.
enum class OnWorkerLoss {
  kReplay,  // they are computed again up to the last token that was emitted, and go on
  kFail,    // they end with kFailed
};

enum class EngineState {
  kLoading,     // the worker was never ready yet
  kServing,     // the worker takes plans
  kRecovering,  // the worker was lost and may return, or leaves; generations that do not run wait
  kFailed,      // the worker is lost for good; nothing can start
};

struct EngineOptions {
  SchedulerOptions scheduler{};
  // Steps that a plan may run without another one. Longer saves messages; a cancellation never
  // waits for more than one step whatever the value.
  int run_ahead = 16;
  int max_waiting = 256;  // generations that may wait for a slot
  OnWorkerLoss on_worker_loss = OnWorkerLoss::kReplay;
  // A generation that loses its worker once more than this ends with kFailed.
  int max_replays = 2;
  // What a client is told to wait after a loss. A group is meant to serve again 3 s after one.
  double retry_after_seconds = 3;
  // Called from the engine's thread at every change; must not block and not call CheckInvariants().
  std::function<void(EngineState)> on_state_change{};
  const Clock* clock = &MonotonicClock::Get();
};

// Counters since the start, for logs, monitors and tests. Consistent with each other at any one
// moment.
struct EngineStats {
  EngineState state = EngineState::kLoading;
  int64_t num_steps = 0;
  int64_t num_plans = 0;
  int64_t prompt_tokens = 0;        // evaluated, without the reused ones and those of replays
  int64_t prefix_query_tokens = 0;  // of prompts that were looked up among the kept prefixes
  int64_t cached_tokens = 0;        // of those, the ones that were found and not evaluated
  int64_t completion_tokens = 0;    // sampled, including those behind a stop string
  int64_t replayed_tokens = 0;      // computed again after losses
  int64_t num_losses = 0;           // of the worker
  int64_t num_replays = 0;          // generations that were taken up again, once each time
  std::array<int64_t, kNumFinishReasons> num_finished{};  // generations, by FinishReason
  int num_running = 0;
  int num_waiting = 0;
  int num_pages = 0;
  int num_free_pages = 0;
  int num_checkpoints = 0;      // prefixes that can be reused
  StepCosts costs;              // of all steps
  std::vector<SlotInfo> slots;  // by slot number
};

// Continuous batching over one worker: one running sequence is a batch of one.
//
// All sequences live on the engine's own thread. What the worker tells, starts and cancellations
// reach it as messages, so no lock is held while anything is decided or delivered.
//
// A worker that was lost and returns finds every generation again: prompt and emitted tokens are
// computed once more and sampling goes on behind them, so that no emitted token is lost, repeated
// or changed (docs/adr/0008-loss-and-replay.md).
class Engine : public Generator {
 public:
  // `tokenizer` must outlive the engine. Ids of end tokens come from it.
  Engine(std::unique_ptr<WorkerHandle> worker, const model::Tokenizer& tokenizer,
         const EngineOptions& options);

  // Cancels what runs, delivers the last events and stops the worker.
  ~Engine() override;

  // Generations may start in every state but kFailed; they wait until the worker is ready.
  absl::StatusOr<uint64_t> Start(GenerationRequest request, EventCallback callback) override;
  void Cancel(uint64_t id) override;

  EngineState state() const;
  // Why state() is kFailed; OK otherwise.
  absl::Status failure() const;
  EngineStats stats() const;

  // Asks the engine's thread whether its books balance, for tests; stats() knows of all that came
  // before. Not from a callback.
  // Errors: kInternal says what does not.
  absl::Status CheckInvariants();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::coordinator
