// A worker in this process that is loaded while the server already answers.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/status/statusor.h"

#include "app/local_worker.h"
#include "coordinator/worker_handle.h"
#include "worker/worker.h"

namespace switchyard::app {

// Ready once `load` has returned a worker; lost for good if it returned an error.
class LoadingWorker : public coordinator::WorkerHandle {
 public:
  // Called once, on a thread of its own; ends soon, with an error, once `is_stopped` is true.
  using Load = std::function<absl::StatusOr<std::unique_ptr<worker::Worker>>(
      const std::atomic<bool>& is_stopped)>;

  // `options` are those that `load` creates its worker with.
  LoadingWorker(Load load, const worker::WorkerOptions& options)
      : load_(std::move(load)), options_(options) {}
  ~LoadingWorker() override { Stop(); }

  coordinator::WorkerCapacity capacity() const override { return CapacityOf(options_); }

  void Start(coordinator::WorkerEvents& events) override {
    thread_ = std::thread([this, &events] {
      auto loaded = load_(is_stopped_);
      if (!loaded.ok()) {
        events.OnLost(loaded.status(), /*returns=*/false);
        return;
      }
      auto worker = std::make_unique<LocalWorker>(*std::move(loaded), options_);
      LocalWorker& started = *worker;
      {
        std::lock_guard lock(mutex_);
        worker_ = std::move(worker);
      }
      started.Start(events);
    });
  }

  // Plans come only after OnReady().
  absl::Status Submit(switchyard::worker::v1::StepPlan plan) override {
    std::lock_guard lock(mutex_);
    return worker_ == nullptr ? absl::OkStatus() : worker_->Submit(std::move(plan));
  }

  // Where its experts are; null until it is loaded. Threads: any.
  std::optional<worker::ResidencySnapshot> residency() {
    std::lock_guard lock(mutex_);
    if (worker_ == nullptr) return std::nullopt;
    return worker_->residency();
  }

  void Stop() override {
    is_stopped_ = true;
    if (thread_.joinable()) thread_.join();
    if (worker_ != nullptr) worker_->Stop();
  }

 private:
  const Load load_;
  const worker::WorkerOptions options_;
  std::atomic<bool> is_stopped_ = false;
  std::mutex mutex_;
  std::unique_ptr<LocalWorker> worker_;
  std::thread thread_;
};

}  // namespace switchyard::app
