#include "app/generation_run.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "app/exit_code.h"
#include "app/interrupt.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {

absl::StatusOr<coordinator::GenerationEvent> RunGeneration(coordinator::Generator& generator,
                                                           coordinator::GenerationRequest request) {
  std::mutex mutex;
  std::condition_variable ended;
  coordinator::GenerationEvent last;
  SWITCHYARD_ASSIGN_OR_RETURN(
      const uint64_t id,
      generator.Start(std::move(request), [&](const coordinator::GenerationEvent& event) {
        if (!event.finished) return;
        // Notified under the lock: once it is released, this frame may be gone.
        std::lock_guard lock(mutex);
        last = event;
        ended.notify_one();
      }));
  std::unique_lock lock(mutex);
  bool is_cancelled = false;
  while (!last.finished) {
    // Signals do not wake a condition variable, so it looks up now and then.
    ended.wait_for(lock, std::chrono::milliseconds(20));
    if (is_cancelled || !IsInterrupted()) continue;
    is_cancelled = true;
    lock.unlock();
    generator.Cancel(id);
    lock.lock();
  }
  if (last.reason == coordinator::FinishReason::kCancelled) return InterruptedStatus();
  if (last.reason == coordinator::FinishReason::kFailed) {
    return WithExitCode(last.error, ExitCode::kWorkerLost);
  }
  return last;
}

}  // namespace switchyard::app
