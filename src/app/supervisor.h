// Starts worker processes on this machine, notices when they end and starts them again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace switchyard::app {

struct SupervisedProcess {
  std::string worker_id;
  std::string prefix;                  // of its lines on our stderr, such as "worker 0: "
  std::vector<std::string> arguments;  // without the program
};

struct SupervisorOptions {
  std::string program = "/proc/self/exe";
  std::vector<SupervisedProcess> processes;
  // A process that ends is started again at once, then after first_retry_seconds, doubling; one
  // that ran for healthy_seconds begins anew.
  double first_retry_seconds = 0.1;
  double max_retry_seconds = 5;
  double healthy_seconds = 60;
  double stop_seconds = 1;  // from SIGTERM to SIGKILL, when the supervisor ends

  // Both are called from the supervisor's thread. `returns`: the process will be started again; it
  // is not if it was used wrongly, has no use for its model, or is the first one and finds no fit
  // hardware (exit_code.h). The status carries that exit code. `pid` 0: it could not even be
  // started.
  std::function<void(const std::string& worker_id, uint32_t pid)> on_start;
  std::function<void(const std::string& worker_id, uint32_t pid, const absl::Status& status,
                     bool returns)>
      on_exit;
};

// A process ends with its supervisor: asked first, then killed, and by the kernel if this process
// is killed itself.
//
// Threads: Kill() and num_restarts() from any.
class Supervisor {
 public:
  // Starts the processes.
  explicit Supervisor(SupervisorOptions options);
  // Ends them.
  ~Supervisor();

  // Kills the process, if it still runs and is the present one of its place.
  void Kill(const std::string& worker_id, uint32_t pid);

  // Of all processes, and of one.
  int64_t num_restarts() const;
  int64_t num_restarts(const std::string& worker_id) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::app
