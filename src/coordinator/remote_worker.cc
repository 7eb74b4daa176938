#include "coordinator/remote_worker.h"

#include <utility>

namespace switchyard::coordinator {

absl::Status RemoteWorker::Submit(switchyard::worker::v1::StepPlan plan) {
  cluster_.Post([plan = std::move(plan)](Cluster& cluster) mutable {
    const absl::Status status = cluster.Submit(std::move(plan));
    if (!status.ok()) cluster.Fail(status);
  });
  return absl::OkStatus();
}

}  // namespace switchyard::coordinator
