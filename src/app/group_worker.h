// A group of worker processes that ends with the engine it works for.
#pragma once

#include <memory>
#include <utility>

#include "app/worker_group.h"
#include "coordinator/worker_handle.h"

namespace switchyard::app {

class GroupWorker : public coordinator::WorkerHandle {
 public:
  explicit GroupWorker(std::unique_ptr<WorkerGroup> group)
      : group_(std::move(group)), handle_(group_->MakeHandle()) {}

  coordinator::WorkerCapacity capacity() const override { return handle_->capacity(); }
  void Start(coordinator::WorkerEvents& events) override { handle_->Start(events); }
  absl::Status Submit(switchyard::worker::v1::StepPlan plan) override {
    return handle_->Submit(std::move(plan));
  }
  void Stop() override { handle_->Stop(); }

 private:
  std::unique_ptr<WorkerGroup> group_;
  std::unique_ptr<coordinator::WorkerHandle> handle_;  // before the group it goes
};

}  // namespace switchyard::app
