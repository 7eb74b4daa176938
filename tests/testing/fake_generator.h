// A generator that a test drives by hand: events come when the test says so.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/generator.h"

namespace switchyard::testing {

// Threads: any. Events come on the thread that calls Emit(), so a test that uses several threads
//          gives each generation to one of them, as the engine does.
class FakeGenerator : public coordinator::Generator {
 public:
  absl::StatusOr<uint64_t> Start(coordinator::GenerationRequest request,
                                 EventCallback callback) override {
    std::unique_lock lock(mutex_);
    if (!start_status_.ok()) return start_status_;
    const uint64_t id = ++last_id_;
    EventCallback immediate = emit_at_start_ ? callback : nullptr;
    running_[id] = std::move(callback);
    requests_.push_back(std::move(request));
    changed_.notify_all();
    lock.unlock();
    if (immediate) Emit(id, *emit_at_start_);
    return id;
  }

  void Cancel(uint64_t id) override {
    {
      std::lock_guard lock(mutex_);
      cancelled_.push_back(id);
      changed_.notify_all();
      if (!ends_cancelled_) return;
    }
    Finish(id, coordinator::FinishReason::kCancelled);
  }

  // Delivers `event`; nothing happens once the generation has ended.
  void Emit(uint64_t id, const coordinator::GenerationEvent& event) {
    EventCallback callback;
    {
      std::lock_guard lock(mutex_);
      const auto it = running_.find(id);
      if (it == running_.end()) return;
      callback = it->second;
      if (event.finished) running_.erase(it);
    }
    callback(event);
  }

  void EmitText(uint64_t id, std::string text, int completion_tokens = 1) {
    coordinator::GenerationEvent event;
    event.text = std::move(text);
    event.token_ids = {7};
    event.usage.completion_tokens = completion_tokens;
    Emit(id, event);
  }

  void Finish(uint64_t id, coordinator::FinishReason reason, absl::Status error = {}) {
    coordinator::GenerationEvent event;
    event.finished = true;
    event.reason = reason;
    event.error = std::move(error);
    Emit(id, event);
  }

  // What Start() returns from now on, where it is not OK.
  void RefuseStarts(absl::Status status) {
    std::lock_guard lock(mutex_);
    start_status_ = std::move(status);
  }

  // Start() delivers `event` before it returns.
  void EmitAtStart(coordinator::GenerationEvent event) {
    std::lock_guard lock(mutex_);
    emit_at_start_ = std::move(event);
  }

  // Whether Cancel() ends a generation at once (default) or leaves that to the test.
  void EndWhenCancelled(bool ends) {
    std::lock_guard lock(mutex_);
    ends_cancelled_ = ends;
  }

  void WaitForStarts(uint64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return last_id_ >= count; });
  }
  void WaitForCancels(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return cancelled_.size() >= count; });
  }

  std::vector<coordinator::GenerationRequest> requests() const {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  std::vector<uint64_t> cancelled() const {
    std::lock_guard lock(mutex_);
    return cancelled_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status start_status_;
  std::optional<coordinator::GenerationEvent> emit_at_start_;
  bool ends_cancelled_ = true;
  uint64_t last_id_ = 0;
  std::map<uint64_t, EventCallback> running_;
  std::vector<coordinator::GenerationRequest> requests_;
  std::vector<uint64_t> cancelled_;
};

}  // namespace switchyard::testing
