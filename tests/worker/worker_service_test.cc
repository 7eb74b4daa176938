#include "worker/worker_service.h"

#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "worker/engine_harness.h"

namespace switchyard::worker {
namespace {

class WorkerServiceTest : public testing::Test {
 protected:
  WorkerServiceTest() {
    CommandExecutorOptions options;
    options.make_backend = [](const v1::Configure&) {
      return absl::StatusOr<std::unique_ptr<kernels::Backend>>(MakeBackend(kReference));
    };
    executor_ = CommandExecutor::Create("", options).value();
    registration_.set_worker_id("w");
    registration_.set_incarnation(7);
    service_ = std::make_unique<WorkerService>(*executor_, registration_,
                                               [] { return v1::WORKER_STATE_REGISTERING; });
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::WorkerService::NewStub(
        grpc::CreateChannel(fmt::format("127.0.0.1:{}", port), grpc::InsecureChannelCredentials()));
  }
  ~WorkerServiceTest() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::unique_ptr<CommandExecutor> executor_;
  v1::RegisterWorkerRequest registration_;
  std::unique_ptr<WorkerService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
};

TEST_F(WorkerServiceTest, TellsItsStatus) {
  v1::GetWorkerStatusResponse response;
  ASSERT_TRUE(stub_->GetWorkerStatus(&context_, {}, &response).ok());
  EXPECT_EQ(response.worker_id(), "w");
  EXPECT_EQ(response.incarnation(), 7u);
  EXPECT_EQ(response.state(), v1::WORKER_STATE_REGISTERING);
  EXPECT_GT(response.resident_bytes(), 0u);
}

TEST_F(WorkerServiceTest, ResidencyOfNothingIsAFailedPrecondition) {
  v1::GetResidencyResponse response;
  EXPECT_EQ(stub_->GetResidency(&context_, {}, &response).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(WorkerServiceTest, TelemetryComesUntilTheClientGoes) {
  v1::StreamTelemetryRequest request;
  request.mutable_interval()->set_nanos(10'000'000);
  const auto stream = stub_->StreamTelemetry(&context_, request);
  v1::StreamTelemetryResponse response;
  uint64_t last_ns = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_GT(response.time_ns(), last_ns);
    last_ns = response.time_ns();
  }
  context_.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(WorkerServiceTest, ClientMayGoWhileTheNextTelemetryIsFarAway) {
  v1::StreamTelemetryRequest request;
  request.mutable_interval()->set_seconds(3600);
  const auto stream = stub_->StreamTelemetry(&context_, request);
  v1::StreamTelemetryResponse response;
  ASSERT_TRUE(stream->Read(&response));
  context_.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(WorkerServiceTest, RefusesAnIntervalThatIsTooShort) {
  v1::StreamTelemetryRequest request;
  request.mutable_interval()->set_nanos(9'000'000);
  const auto stream = stub_->StreamTelemetry(&context_, request);
  v1::StreamTelemetryResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace switchyard::worker
