// Runs single plans on a worker and waits: for commands that measure or look inside, without the
// coordinator's engine.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "coordinator/worker_handle.h"
#include "worker/worker.h"

namespace switchyard::app {

// Drives slot 0 of a worker, or of a group of them, through one sequence at a time. A worker that
// is lost is an error: what it had computed is not computed again.
//
// Threads: one at a time.
class StepDriver : private coordinator::WorkerEvents {
 public:
  // `options` are those that the worker was created with.
  StepDriver(std::unique_ptr<worker::Worker> worker, const worker::WorkerOptions& options);
  // Plans wait until the worker is ready.
  StepDriver(std::unique_ptr<coordinator::WorkerHandle> worker,
             const worker::WorkerOptions& options);
  ~StepDriver() override;

  // Called with each row's logits, [vocab_size], in order.
  using LogitsCallback = std::function<absl::Status(absl::Span<const float> logits)>;

  // Forgets the sequence and starts an empty one that may have as many tokens as the context.
  void Reset();

  // Computes `token_ids` at the end of the sequence, in chunks of at most `chunk_tokens`. With
  // `sample`, the worker draws a token from the last row, from which Decode() goes on. If
  // `on_logits` is set it gets every row.
  absl::Status Prefill(absl::Span<const int32_t> token_ids, int chunk_tokens, bool sample,
                       const LogitsCallback& on_logits);

  // Called with each step's result, on the step thread.
  using ResultCallback = std::function<void(const switchyard::worker::v1::StepResult&)>;

  // Generates `count` more tokens greedily, whatever they are, one a step.
  absl::StatusOr<std::vector<int32_t>> Decode(int count, const ResultCallback& on_result = {});

  int64_t position() const { return position_; }
  // Whether the worker is in this process.
  bool is_local() const { return local_ != nullptr; }
  // REQUIRES: is_local().
  const worker::Worker& worker() const { return *local_; }

 private:
  using StepResult = switchyard::worker::v1::StepResult;

  // Submits the plan; its results go to `on_result` (null = to nobody), unless another plan
  // follows.
  absl::Status Submit(switchyard::worker::v1::StepPlan plan,
                      const std::function<void(const StepResult&)>* on_result);
  // Submits the plan, hands each of its results to `on_result`, on the step thread, and waits for
  // its end.
  absl::Status Run(switchyard::worker::v1::StepPlan plan,
                   const std::function<void(const StepResult&)>& on_result);
  // Waits until `what`, which is asked with mutex_ held, or the worker is lost or the user
  // interrupts.
  absl::Status WaitFor(const std::function<bool()>& what);

  void OnReady(uint64_t epoch) override;
  void OnResult(const StepResult& result) override;
  void OnLeaving() override {}
  void OnLost(const absl::Status& status, bool returns) override;

  const worker::Worker* local_ = nullptr;  // in worker_
  std::unique_ptr<coordinator::WorkerHandle> worker_;
  worker::WorkerOptions options_;
  uint64_t plan_ = 0;
  uint64_t incarnation_ = 0;
  bool needs_start_ = true;
  int64_t position_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t epoch_ = 0;    // 0 = not ready yet
  bool is_done_ = false;  // the newest plan
  absl::Status failure_;
  const std::function<void(const StepResult&)>* on_result_ = nullptr;
};

}  // namespace switchyard::app
