#include "coordinator/grpc_server.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpcpp/completion_queue.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include "base/status.h"
#include "coordinator/service_fixture.h"
#include "testing/fake_generator.h"

namespace switchyard::coordinator {
namespace {

using ::testing::HasSubstr;

// A call of a method whose messages are written by hand: health.proto and reflection.proto are not
// part of the build.
class RawCall {
 public:
  RawCall(const std::string& address, const std::string& method, const std::string& request)
      : stub_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        call_(stub_.PrepareCall(&context_, method, &queue_)) {
    call_->StartCall(this);
    Wait();
    const grpc::Slice slice(request);
    call_->Write(grpc::ByteBuffer(&slice, 1), this);
    Wait();
  }
  ~RawCall() {
    context_.TryCancel();
    Finish();
    queue_.Shutdown();
    Wait();
  }

  // The next answer; nothing after the last.
  std::optional<std::string> Read() {
    grpc::ByteBuffer buffer;
    call_->Read(&buffer, this);
    if (!Wait()) return std::nullopt;
    grpc::Slice slice;
    SWITCHYARD_CHECK(buffer.DumpToSingleSlice(&slice).ok());
    return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }

  grpc::Status Finish() {
    if (!status_) {
      status_.emplace();
      call_->Finish(&*status_, this);
      Wait();
    }
    return *status_;
  }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  std::optional<grpc::Status> status_;
};

// HealthCheckRequest: field 1 is the name of the service.
std::string HealthRequest(const std::string& service) {
  if (service.empty()) return "";
  return std::string("\x0a") + static_cast<char>(service.size()) + service;
}
// HealthCheckResponse: field 1 is the status.
constexpr char kServing[] = "\x08\x01";
constexpr char kNotServing[] = "\x08\x02";

class GrpcServerTest : public ::testing::Test {
 protected:
  std::optional<std::string> Check(const std::string& service) {
    RawCall call(fixture_.address(), "/grpc.health.v1.Health/Check", HealthRequest(service));
    return call.Read();
  }

  testing::FakeGenerator generator_;
  ServiceFixture fixture_{generator_};
  GenerationService another_{fixture_.gate(), fixture_.model(), {}};  // for a second server
};

TEST_F(GrpcServerTest, ProcessIsAliveInEveryState) {
  for (EngineState state : {EngineState::kLoading, EngineState::kServing, EngineState::kFailed}) {
    fixture_.gate().SetEngineState(state);
    EXPECT_EQ(Check(""), kServing);
  }
  fixture_.gate().BeginDrain();
  EXPECT_EQ(Check(""), kServing);
}

TEST_F(GrpcServerTest, ServiceIsServingOnlyWhenItTakesRequests) {
  EXPECT_EQ(Check(kGenerationServiceName), kServing);
  fixture_.gate().SetEngineState(EngineState::kRecovering);
  EXPECT_EQ(Check(kGenerationServiceName), kNotServing);
  fixture_.gate().SetEngineState(EngineState::kServing);
  EXPECT_EQ(Check(kGenerationServiceName), kServing);
  fixture_.gate().BeginDrain();
  EXPECT_EQ(Check(kGenerationServiceName), kNotServing);
}

TEST_F(GrpcServerTest, UnknownServicesAreNotFound) {
  RawCall call(fixture_.address(), "/grpc.health.v1.Health/Check", HealthRequest("nobody"));
  EXPECT_FALSE(call.Read().has_value());
  EXPECT_EQ(call.Finish().error_code(), grpc::NOT_FOUND);
}

TEST_F(GrpcServerTest, WatchersSeeEveryChange) {
  RawCall watch(fixture_.address(), "/grpc.health.v1.Health/Watch",
                HealthRequest(kGenerationServiceName));
  EXPECT_EQ(watch.Read(), kServing);
  fixture_.gate().SetEngineState(EngineState::kRecovering);
  EXPECT_EQ(watch.Read(), kNotServing);
  fixture_.gate().SetEngineState(EngineState::kServing);
  EXPECT_EQ(watch.Read(), kServing);
  fixture_.server().BeginDrain();
  EXPECT_EQ(watch.Read(), kNotServing);
}

TEST_F(GrpcServerTest, DrainOfTheServerIsNotTakenBack) {
  fixture_.server().BeginDrain();
  fixture_.server().SetServing(kGenerationServiceName, true);
  EXPECT_EQ(Check(kGenerationServiceName), kNotServing);
}

TEST_F(GrpcServerTest, RunningCallsMayEndWithinTheGracePeriod) {
  grpc::ClientContext context;
  generation::v1::StreamGenerateRequest request;
  request.mutable_spec()->set_text("hello");
  const auto reader = fixture_.stub().StreamGenerate(&context, request);
  generator_.WaitForStarts(1);
  std::thread stopper([&] { fixture_.server().Stop(60); });
  generator_.EmitText(1, "x");
  generator_.Finish(1, FinishReason::kMaxTokens);
  generation::v1::StreamGenerateResponse event;
  EXPECT_TRUE(reader->Read(&event));
  EXPECT_TRUE(reader->Read(&event));
  EXPECT_TRUE(event.has_finished());
  EXPECT_TRUE(reader->Finish().ok());
  stopper.join();
}

TEST_F(GrpcServerTest, StopCancelsWhatDoesNotEnd) {
  grpc::ClientContext context;
  generation::v1::StreamGenerateRequest request;
  request.mutable_spec()->set_text("hello");
  const auto reader = fixture_.stub().StreamGenerate(&context, request);
  generator_.WaitForStarts(1);
  fixture_.server().Stop(0);
  EXPECT_FALSE(reader->Finish().ok());
  EXPECT_TRUE(fixture_.gate().WaitUntilIdle(60));
  fixture_.server().Stop(0);  // again
}

TEST_F(GrpcServerTest, TakenPortIsRefused) {
  const auto second = GrpcServer::Start({.address = fixture_.address()}, {&another_}, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(second.status())), HasSubstr(fixture_.address()));
}

TEST_F(GrpcServerTest, GateMayOutliveTheServer) {
  auto server = GrpcServer::Start({}, {&another_}, {"x"});
  ASSERT_TRUE(server.ok());
  (*server)->Follow(fixture_.gate(), "x");
  server->reset();
  fixture_.gate().SetEngineState(EngineState::kFailed);
  EXPECT_EQ(Check(kGenerationServiceName), kNotServing);
}

TEST_F(GrpcServerTest, UnixSocketsWork) {
  const std::string address = "unix:" + ::testing::TempDir() + "grpc_server_test.sock";
  const auto server = GrpcServer::Start({.address = address}, {&another_}, {});
  ASSERT_TRUE(server.ok()) << server.status();
  RawCall call(address, "/grpc.health.v1.Health/Check", "");
  EXPECT_EQ(call.Read(), kServing);
}

TEST_F(GrpcServerTest, ReflectionIsAnOption) {
  // ServerReflectionRequest: field 7, list_services.
  const std::string list_services("\x3a\x00", 2);
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  RawCall without(fixture_.address(), method, list_services);
  EXPECT_FALSE(without.Read().has_value());
  EXPECT_EQ(without.Finish().error_code(), grpc::UNIMPLEMENTED);

  const auto server = GrpcServer::Start({.has_reflection = true}, {&another_}, {});
  ASSERT_TRUE(server.ok());
  RawCall with("127.0.0.1:" + std::to_string((*server)->port()), method, list_services);
  EXPECT_THAT(with.Read().value_or(""), HasSubstr(kGenerationServiceName));
}

}  // namespace
}  // namespace switchyard::coordinator
