// The workers of a group as the engine sees them: one worker in another process.
#pragma once

#include "coordinator/cluster_thread.h"
#include "coordinator/worker_handle.h"

namespace switchyard::coordinator {

// Plans go to the lead rank, results come from it; the cluster says when the group is ready.
class RemoteWorker : public WorkerHandle {
 public:
  // `cluster` must outlive the object. `capacity` is what the group is configured with.
  RemoteWorker(ClusterThread& cluster, const WorkerCapacity& capacity)
      : cluster_(cluster), capacity_(capacity) {}
  ~RemoteWorker() override { Stop(); }

  WorkerCapacity capacity() const override { return capacity_; }
  void Start(WorkerEvents& events) override { cluster_.Attach(events); }
  // A plan that the cluster cannot take is our own bug: OnLost() for good follows.
  absl::Status Submit(switchyard::worker::v1::StepPlan plan) override;
  // The group stays; it just is nobody's any more.
  void Stop() override { cluster_.Detach(); }

 private:
  ClusterThread& cluster_;
  WorkerCapacity capacity_;
};

}  // namespace switchyard::coordinator
