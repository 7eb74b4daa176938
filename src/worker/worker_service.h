// gRPC face of a worker process, for operators and tests.
#pragma once

#include <functional>

#include <grpcpp/grpcpp.h>

#include "switchyard/worker/v1/worker.grpc.pb.h"

#include "worker/command_executor.h"

namespace switchyard::worker {

// Threads: any.
class WorkerService final : public v1::WorkerService::CallbackService {
 public:
  // `registration`: what the worker said of itself. `state`: as in its heartbeats. All must outlive
  // the service.
  WorkerService(const CommandExecutor& executor, const v1::RegisterWorkerRequest& registration,
                std::function<v1::WorkerState()> state)
      : executor_(executor), registration_(registration), state_(std::move(state)) {}

  grpc::ServerUnaryReactor* GetWorkerStatus(grpc::CallbackServerContext* context,
                                            const v1::GetWorkerStatusRequest* request,
                                            v1::GetWorkerStatusResponse* response) override;
  grpc::ServerUnaryReactor* GetResidency(grpc::CallbackServerContext* context,
                                         const v1::GetResidencyRequest* request,
                                         v1::GetResidencyResponse* response) override;
  grpc::ServerWriteReactor<v1::StreamTelemetryResponse>* StreamTelemetry(
      grpc::CallbackServerContext* context, const v1::StreamTelemetryRequest* request) override;

 private:
  const CommandExecutor& executor_;
  const v1::RegisterWorkerRequest& registration_;
  std::function<v1::WorkerState()> state_;
};

}  // namespace switchyard::worker
