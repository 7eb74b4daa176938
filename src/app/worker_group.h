// A group of worker processes for an engine in this process: cluster, server for their sessions,
// supervisor.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "switchyard/placement/v1/placement.pb.h"

#include "app/loaded_model.h"
#include "app/model_options.h"
#include "app/supervisor.h"
#include "coordinator/cluster_thread.h"
#include "coordinator/worker_handle.h"
#include "worker/worker.h"

namespace switchyard::app {

struct WorkerGroupOptions {
  // Who computes what; there are as many workers.
  placement::v1::Placement placement;
  // Whether they are started here; else the group waits for workers from outside.
  bool starts_processes = true;
  // See coordinator::ClusterOptions.
  std::function<absl::StatusOr<placement::v1::Placement>(int num_workers)> replan;
  double replan_seconds = 30;
  // "host:port" where workers from outside register; port 0 = any that is free. Empty: a socket
  // that only processes of this user reach.
  std::string listen_address;
  std::string program = "/proc/self/exe";  // what is started
};

// Threads: any.
class WorkerGroup {
 public:
  // Starts server and processes; returns before the model is loaded. `worker` are the sizes and
  // what else is decided here.
  // Errors: kInvalidArgument (options), kUnavailable (the address cannot be listened on), what
  //         reading the model's header returns.
  static absl::StatusOr<std::unique_ptr<WorkerGroup>> Start(const LoadedModel& model,
                                                            const ModelOptions& model_options,
                                                            const worker::WorkerOptions& worker,
                                                            const WorkerGroupOptions& options);
  // Ends the processes. Whoever has a handle must be gone.
  ~WorkerGroup();

  // The group as an engine sees it; one at a time.
  std::unique_ptr<coordinator::WorkerHandle> MakeHandle();

  // Where workers register: "127.0.0.1:7070" or "unix:/path".
  const std::string& address() const;
  coordinator::ClusterStatus status();
  // Of all processes that were started here, and of the one in this place.
  int64_t num_restarts() const;
  int64_t num_restarts(int place) const;

 private:
  struct Impl;
  explicit WorkerGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::app
