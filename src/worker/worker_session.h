// The worker's membership in a group: registers, holds a session, comes back after a loss.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"

#include "switchyard/worker/v1/session.pb.h"

#include "worker/command_executor.h"

namespace switchyard::worker {

// Must be the coordinator's.
inline constexpr uint32_t kProtocolVersion = 2;

struct WorkerSessionOptions {
  std::string coordinator;  // "host:port" or "unix:/path"
  // What the worker says of itself; protocol version and digest are filled in.
  v1::RegisterWorkerRequest registration;

  double call_seconds = 5;           // deadline of a registration
  double first_retry_seconds = 0.1;  // between attempts, doubling
  double max_retry_seconds = 2;
  double lost_seconds = 60;    // without a session; then Run() gives up
  double drain_seconds = 30;   // to finish what runs, unless the coordinator says
  double poll_seconds = 0.05;  // between two looks at what nobody tells of, such as should_leave

  std::function<void(const v1::RegisterWorkerResponse&)> on_registered = [](const auto&) {};
  // The worker can take plans, or cannot any more.
  std::function<void(bool)> on_ready = [](bool) {};
  // Asked a few times per second: is the worker to leave?
  std::function<bool()> should_leave = [] { return false; };
  // The step thread does not come to an end: the process is to be ended.
  std::function<void()> on_stuck = [] {};
};

// Threads: Run() from one thread, once.
class WorkerSession {
 public:
  // `executor` must outlive the object.
  WorkerSession(CommandExecutor& executor, WorkerSessionOptions options);
  ~WorkerSession();

  // Serves sessions until the worker has left or the coordinator has ended in good order (OK),
  // cannot serve any (CommandExecutor::failure()),
  // is refused (the coordinator's status) or has been without a session for too long
  // (kUnavailable).
  absl::Status Run();

  v1::WorkerState state() const;

 private:
  class Stream;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::worker
