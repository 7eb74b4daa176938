// gRPC face of a cluster: registration and sessions of workers.
#pragma once

#include <grpcpp/grpcpp.h>

#include "switchyard/worker/v1/session.grpc.pb.h"

#include "coordinator/cluster_thread.h"

namespace switchyard::coordinator {

// Translates and decides nothing. A session's next message is read when the cluster has taken the
// one before, so a worker that floods waits for itself.
//
// Threads: any.
class WorkerSessionService final
    : public switchyard::worker::v1::CoordinatorService::CallbackService {
 public:
  // `cluster` must outlive the server that the service is registered with. A session that has named
  // no lease after `hello_seconds` is ended.
  explicit WorkerSessionService(ClusterThread& cluster, double hello_seconds = 10)
      : cluster_(cluster), hello_seconds_(hello_seconds) {}

  // What a server for workers needs beside its address: message limits and keepalive.
  static void ConfigureServer(grpc::ServerBuilder& builder);

  grpc::ServerUnaryReactor* RegisterWorker(
      grpc::CallbackServerContext* context,
      const switchyard::worker::v1::RegisterWorkerRequest* request,
      switchyard::worker::v1::RegisterWorkerResponse* response) override;
  grpc::ServerBidiReactor<switchyard::worker::v1::WorkerSessionRequest,
                          switchyard::worker::v1::WorkerSessionResponse>*
  WorkerSession(grpc::CallbackServerContext* context) override;

 private:
  ClusterThread& cluster_;
  const double hello_seconds_;
};

}  // namespace switchyard::coordinator
