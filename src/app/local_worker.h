// A worker in this process: plans and results are passed by reference, nothing is serialised.
#pragma once

#include <memory>

#include "coordinator/worker_handle.h"
#include "worker/worker.h"

namespace switchyard::app {

class LocalWorker : public coordinator::WorkerHandle {
 public:
  // `capacity` is what the worker was created with.
  LocalWorker(std::unique_ptr<worker::Worker> worker, const coordinator::WorkerCapacity& capacity)
      : worker_(std::move(worker)), capacity_(capacity) {}

  coordinator::WorkerCapacity capacity() const override { return capacity_; }
  void Start(ResultCallback callback) override { worker_->Start(std::move(callback)); }
  absl::Status Submit(switchyard::worker::v1::StepPlan plan) override {
    return worker_->Submit(std::move(plan));
  }
  void Stop() override { worker_->Stop(); }

 private:
  std::unique_ptr<worker::Worker> worker_;
  coordinator::WorkerCapacity capacity_;
};

}  // namespace switchyard::app
