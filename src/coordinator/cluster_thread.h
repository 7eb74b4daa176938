// The thread on which a cluster lives: what comes from streams, the engine and the supervisor
// reaches it as messages.
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

// Threads: any, but Detach() and status() not from within what was posted.
class ClusterThread : private ClusterEvents {
 public:
  // Told of processes that are to be killed; from the cluster's thread.
  using StaleProcess = std::function<void(const std::string& worker_id, uint32_t pid)>;

  ClusterThread(const ClusterOptions& options, StaleProcess on_stale_process);
  // Closes all sessions.
  ~ClusterThread() override;

  // Runs `what` on the thread, in order; what comes after the end is dropped.
  void Post(absl::AnyInvocable<void(Cluster&)> what);

  // Sends events to `events` from now on, beginning with where the group stands.
  void Attach(WorkerEvents& events);
  // No event comes once it has returned.
  void Detach();

  ClusterStatus status();

 private:
  void Run();
  // Posts and waits.
  void Call(absl::AnyInvocable<void(Cluster&)> what);

  void OnReady(uint64_t epoch) override;
  void OnResult(const switchyard::worker::v1::StepResult& result) override;
  void OnLost(const absl::Status& status, bool returns) override;
  void OnStaleProcess(const std::string& worker_id, uint32_t pid) override;

  const double tick_seconds_;
  StaleProcess on_stale_process_;

  // Of the thread.
  Cluster cluster_;
  WorkerEvents* events_ = nullptr;
  uint64_t ready_epoch_ = 0;  // 0 = not ready
  absl::Status end_;          // not OK: lost for good

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<absl::AnyInvocable<void(Cluster&)>> inbox_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace switchyard::coordinator
