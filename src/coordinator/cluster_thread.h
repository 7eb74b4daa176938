// Who runs a cluster: what comes from streams, the engine and the supervisor reaches it as
// messages, one after the other.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

#include "coordinator/cluster.h"
#include "coordinator/worker_handle.h"

namespace switchyard::coordinator {

// A message is run by the thread that posts it, or by the one that is running another: a result
// crosses to the engine without a thread in between, which would have to be woken for every token.
//
// Threads: any, but Detach() and status() not from within what was posted.
class ClusterThread : private ClusterEvents {
 public:
  // Told of processes that are to be killed, from within what was posted.
  using StaleProcess = std::function<void(const std::string& worker_id, uint32_t pid)>;

  ClusterThread(const ClusterOptions& options, StaleProcess on_stale_process);
  // Closes all sessions.
  ~ClusterThread() override;

  // Runs `what`, in order: now, or on the thread that runs another. What comes after the end is
  // dropped. No lock may be held that a message, the events or the streams need.
  void Post(absl::AnyInvocable<void(Cluster&)> what);

  // Sends events to `events` from now on, beginning with where the group stands.
  void Attach(WorkerEvents& events);
  // No event comes once it has returned.
  void Detach();

  ClusterStatus status();

 private:
  void RunTicks(double seconds);
  // Posts and waits.
  void Call(absl::AnyInvocable<void(Cluster&)> what);

  void OnReady(uint64_t epoch) override;
  void OnResult(const switchyard::worker::v1::StepResult& result) override;
  void OnLeaving() override;
  void OnLost(const absl::Status& status, bool returns) override;
  void OnStaleProcess(const std::string& worker_id, uint32_t pid) override;

  StaleProcess on_stale_process_;

  // Of whoever runs.
  Cluster cluster_;
  std::vector<absl::AnyInvocable<void(Cluster&)>> batch_;
  WorkerEvents* events_ = nullptr;
  uint64_t ready_epoch_ = 0;  // 0 = not ready
  bool is_leaving_ = false;
  absl::Status end_;  // not OK: lost for good

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<absl::AnyInvocable<void(Cluster&)>> inbox_;
  bool is_running_ = false;
  bool is_stopping_ = false;
  std::thread ticker_;
};

}  // namespace switchyard::coordinator
