// The first error that happened inside a stage.
#pragma once

#include <atomic>
#include <mutex>

#include "absl/status/status.h"

namespace switchyard::kernels {

// Threads: any. A stage that works costs one load.
class StageFault {
 public:
  void Report(const absl::Status& status) {
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
    has_failed_.store(true, std::memory_order_release);
  }
  absl::Status status() const {
    if (!has_failed_.load(std::memory_order_acquire)) return absl::OkStatus();
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  std::atomic<bool> has_failed_ = false;
  mutable std::mutex mutex_;
  absl::Status status_;
};

}  // namespace switchyard::kernels
