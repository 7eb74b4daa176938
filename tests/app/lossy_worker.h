// A real worker that loses its state at given steps and returns.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "app/local_worker.h"
#include "base/check.h"

namespace switchyard::app {

// Everything but the weights is lost, as when a group of workers is formed anew. The result of the
// step still arrives.
class LossyWorker : public coordinator::WorkerHandle {
 public:
  // `losses`: steps, counted from the start over all epochs.
  LossyWorker(std::unique_ptr<worker::Worker> worker, const worker::WorkerOptions& options,
              std::set<int64_t> losses)
      : worker_(std::move(worker)), options_(options), losses_(std::move(losses)) {}
  ~LossyWorker() override { Stop(); }

  coordinator::WorkerCapacity capacity() const override { return CapacityOf(options_); }

  void Start(coordinator::WorkerEvents& events) override {
    events_ = &events;
    worker_->Start([this](const switchyard::worker::v1::StepResult& result) {
      std::lock_guard lock(mutex_);
      if (is_lost_) return;
      SWITCHYARD_CHECK(result.error().empty());
      events_->OnResult(result);
      is_lost_ = losses_.count(num_steps_++) > 0;
      changed_.notify_all();
    });
    events_->OnReady(options_.epoch);
    thread_ = std::thread([this] { Supervise(); });
  }

  absl::Status Submit(switchyard::worker::v1::StepPlan plan) override {
    std::lock_guard lock(mutex_);
    if (is_lost_ || plan.epoch() != options_.epoch) return absl::OkStatus();
    return worker_->Submit(std::move(plan));
  }

  void Stop() override {
    {
      std::lock_guard lock(mutex_);
      is_stopping_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    worker_->Stop();
  }

 private:
  // Body of the thread that restarts the worker; the step thread cannot wait for itself.
  void Supervise() {
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return is_stopping_ || is_lost_; });
        if (is_stopping_) return;
        ++options_.epoch;
      }
      events_->OnLost(absl::UnavailableError("made to lose its state"), /*returns=*/true);
      SWITCHYARD_CHECK(worker_->Reset(options_).ok());
      {
        std::lock_guard lock(mutex_);
        is_lost_ = false;
      }
      events_->OnReady(options_.epoch);
    }
  }

  std::unique_ptr<worker::Worker> worker_;
  coordinator::WorkerEvents* events_ = nullptr;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  worker::WorkerOptions options_;
  std::set<int64_t> losses_;
  int64_t num_steps_ = 0;
  bool is_lost_ = false;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace switchyard::app
