// A worker in this process: plans and results are passed by reference, nothing is serialised.
#pragma once

#include <memory>
#include <utility>

#include "base/status.h"
#include "coordinator/worker_handle.h"
#include "worker/worker.h"

namespace switchyard::app {

// What an engine may number on a worker with these options.
inline coordinator::WorkerCapacity CapacityOf(const worker::WorkerOptions& options) {
  return {.num_slots = options.num_slots,
          .num_pages = options.num_pages,
          .num_checkpoints = options.num_checkpoints,
          .max_context = options.max_context,
          .max_step_rows = options.max_step_rows};
}

// Ready as long as the worker works; one that fails is lost for good.
class LocalWorker : public coordinator::WorkerHandle {
 public:
  // `options` are those that the worker was created with.
  LocalWorker(std::unique_ptr<worker::Worker> worker, const worker::WorkerOptions& options)
      : worker_(std::move(worker)), capacity_(CapacityOf(options)), epoch_(options.epoch) {}

  coordinator::WorkerCapacity capacity() const override { return capacity_; }

  void Start(coordinator::WorkerEvents& events) override {
    worker_->Start([&events](const switchyard::worker::v1::StepResult& result) {
      if (result.error().empty()) {
        events.OnResult(result);
      } else {
        events.OnLost(Internal("it failed: {}", result.error()), /*returns=*/false);
      }
    });
    // Last: without a plan there is no result, so nothing can come before it.
    events.OnReady(epoch_);
  }

  absl::Status Submit(switchyard::worker::v1::StepPlan plan) override {
    absl::Status status = worker_->Submit(std::move(plan));
    if (status.code() == absl::StatusCode::kUnavailable) return absl::OkStatus();  // it has failed
    return status;
  }

  void Stop() override { worker_->Stop(); }

  // Where its experts are. Threads: any.
  worker::ResidencySnapshot residency() const { return worker_->residency(); }

 private:
  std::unique_ptr<worker::Worker> worker_;
  coordinator::WorkerCapacity capacity_;
  uint64_t epoch_;
};

}  // namespace switchyard::app
