// What workers find on the wire, by raw calls that a correct worker would not make, too.
#include "coordinator/worker_session_service.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "base/status.h"
#include "coordinator/remote_worker.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

using ::testing::HasSubstr;

// Counts what an engine is told.
class EventCounter : public WorkerEvents {
 public:
  void OnReady(uint64_t epoch) override { Add(num_ready_, epoch); }
  void OnResult(const v1::StepResult& result) override { Add(num_results_, result.plan()); }
  void OnLeaving() override {}
  void OnLost(const absl::Status&, bool) override { Add(num_lost_, 0); }

  // The last epoch, once the group was ready `count` times.
  uint64_t WaitForReady(int count) { return WaitFor(num_ready_, count); }
  void WaitForLost(int count) { WaitFor(num_lost_, count); }
  void WaitForResults(int count) { WaitFor(num_results_, count); }
  int num_results() {
    std::lock_guard lock(mutex_);
    return num_results_;
  }

 private:
  void Add(int& counter, uint64_t value) {
    std::lock_guard lock(mutex_);
    ++counter;
    last_ = value;
    changed_.notify_all();
  }
  uint64_t WaitFor(int& counter, int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return counter >= count; });
    return last_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int num_ready_ = 0, num_results_ = 0, num_lost_ = 0;
  uint64_t last_ = 0;
};

// A worker's session, call by call.
class RawSession {
 public:
  RawSession(v1::CoordinatorService::Stub& stub, uint64_t lease_id) : lease_id_(lease_id) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stream_ = stub.WorkerSession(&context_);
  }

  bool Send(v1::WorkerSessionRequest message, uint64_t epoch) {
    message.set_lease_id(lease_id_);
    message.set_epoch(epoch);
    return stream_->Write(message);
  }
  bool SendHeartbeat() {
    v1::WorkerSessionRequest message;
    message.mutable_heartbeat()->set_sequence_number(++heartbeat_);
    return Send(message, 0);
  }
  bool SendReady(uint64_t epoch) {
    v1::WorkerSessionRequest message;
    message.mutable_shard_ready();
    return Send(message, epoch);
  }
  bool SendResult(uint64_t epoch, uint64_t plan) {
    v1::WorkerSessionRequest message;
    message.mutable_step_result()->set_plan(plan);
    message.mutable_step_result()->set_last_of_plan(true);
    return Send(message, epoch);
  }
  // The next command, without heartbeats; one that is not set if the session has ended.
  v1::WorkerSessionResponse NextCommand() {
    v1::WorkerSessionResponse command;
    while (stream_->Read(&command)) {
      if (!command.has_heartbeat()) return command;
    }
    return {};
  }
  grpc::Status End() {
    while (NextCommand().command_case() != v1::WorkerSessionResponse::COMMAND_NOT_SET) {
    }
    return stream_->Finish();
  }
  void EndInGoodOrder() { EXPECT_TRUE(stream_->WritesDone()); }
  void Cancel() { context_.TryCancel(); }

 private:
  uint64_t lease_id_;
  uint64_t heartbeat_ = 0;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerSessionRequest, v1::WorkerSessionResponse>>
      stream_;
};

ClusterOptions TestOptions(int world_size) {
  ClusterOptions options;
  if (world_size > 1) {
    options.placement.set_mode(placement::v1::MODE_LAYER_SPLIT);
    options.placement.set_world_size(static_cast<uint32_t>(world_size));
  }
  options.configure.set_model_path("/models/a.gguf");
  options.configure.set_model_digest("sha256:a");
  v1::WorkerSizes& sizes = *options.configure.mutable_sizes();
  sizes.set_num_slots(2);
  sizes.set_num_pages(8);
  sizes.set_max_context(128);
  sizes.set_max_step_rows(64);
  options.vocab_size = 100;
  return options;
}

class WorkerSessionServiceTest : public testing::Test {
 protected:
  explicit WorkerSessionServiceTest(int world_size = 1, double hello_seconds = 60)
      : cluster_(TestOptions(world_size), [](const std::string&, uint32_t) {}),
        service_(cluster_, hello_seconds),
        worker_(cluster_, WorkerCapacity{}) {
    InitLogging({.threshold = LogLevel::kOff});
    grpc::ServerBuilder builder;
    WorkerSessionService::ConfigureServer(builder);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::CoordinatorService::NewStub(
        grpc::CreateChannel(fmt::format("127.0.0.1:{}", port), grpc::InsecureChannelCredentials()));
    worker_.Start(events_);
  }
  ~WorkerSessionServiceTest() override {
    worker_.Stop();
    cluster_.Post([](Cluster& cluster) { cluster.Stop(Unavailable("bye")); });
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  }

  static v1::RegisterWorkerRequest Registration(uint64_t incarnation = 1) {
    v1::RegisterWorkerRequest request;
    request.set_worker_id(fmt::format("w{}", incarnation));
    request.set_incarnation(incarnation);
    request.set_protocol_version(kWorkerProtocolVersion);
    return request;
  }
  grpc::Status Register(const v1::RegisterWorkerRequest& request,
                        v1::RegisterWorkerResponse& response) {
    grpc::ClientContext context;
    return stub_->RegisterWorker(&context, request, &response);
  }
  // Registers, opens a session and sends its first message.
  std::unique_ptr<RawSession> Join(const v1::RegisterWorkerRequest& request = Registration()) {
    v1::RegisterWorkerResponse response;
    EXPECT_TRUE(Register(request, response).ok());
    auto session = std::make_unique<RawSession>(*stub_, response.lease_id());
    EXPECT_TRUE(session->SendHeartbeat());
    return session;
  }
  void Submit(uint64_t epoch, uint64_t number) {
    v1::StepPlan plan;
    plan.set_epoch(epoch);
    plan.set_plan(number);
    plan.set_run_ahead(1);
    EXPECT_TRUE(worker_.Submit(plan).ok());
  }

  ClusterThread cluster_;
  WorkerSessionService service_;
  RemoteWorker worker_;
  EventCounter events_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
};

TEST_F(WorkerSessionServiceTest, RefusesAnotherProtocolVersion) {
  v1::RegisterWorkerRequest request = Registration();
  request.set_protocol_version(kWorkerProtocolVersion + 1);
  v1::RegisterWorkerResponse response;
  const grpc::Status status = Register(request, response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("protocol_version, got: 3, wanted: 2"));
}

TEST_F(WorkerSessionServiceTest, TellsHowOftenToSendHeartbeats) {
  v1::RegisterWorkerResponse response;
  ASSERT_TRUE(Register(Registration(), response).ok());
  EXPECT_EQ(response.heartbeat_interval().nanos(), 500'000'000);
  EXPECT_EQ(response.lease_ttl().seconds(), 5);
  EXPECT_EQ(response.world_size(), 1u);
}

TEST_F(WorkerSessionServiceTest, SessionWithoutALeaseIsNotFound) {
  RawSession session(*stub_, 77);
  session.SendHeartbeat();
  EXPECT_EQ(session.End().error_code(), grpc::StatusCode::NOT_FOUND);
}

class ShortHelloTest : public WorkerSessionServiceTest {
 protected:
  ShortHelloTest() : WorkerSessionServiceTest(/*world_size=*/1, /*hello_seconds=*/0.05) {}
};

TEST_F(ShortHelloTest, SessionThatNamesNoLeaseIsEnded) {
  // The other one has said in time who it is, and stays.
  const auto named = Join();
  const uint64_t epoch = named->NextCommand().epoch();
  RawSession silent(*stub_, 77);
  const grpc::Status status = silent.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(), "session has named no lease within 0.05 s");
  EXPECT_TRUE(named->SendReady(epoch));
  EXPECT_EQ(events_.WaitForReady(1), epoch);
}

TEST_F(WorkerSessionServiceTest, DrainEndsSessionsOnceTheWorkerHasGone) {
  const auto session = Join();
  const uint64_t epoch = session->NextCommand().epoch();
  session->SendReady(epoch);
  events_.WaitForReady(1);
  cluster_.Post([](Cluster& cluster) { cluster.Drain(60); });
  EXPECT_EQ(session->NextCommand().drain().deadline().seconds(), 60);
  session->EndInGoodOrder();
  events_.WaitForLost(1);
  EXPECT_FALSE(session->NextCommand().has_step_plan());
}

TEST_F(WorkerSessionServiceTest, CarriesCommandsAndResults) {
  const auto session = Join();
  const v1::WorkerSessionResponse configure = session->NextCommand();
  EXPECT_EQ(configure.configure().model_path(), "/models/a.gguf");
  ASSERT_TRUE(session->SendReady(configure.epoch()));
  ASSERT_EQ(events_.WaitForReady(1), configure.epoch());
  for (uint64_t number = 1; number <= 100; ++number) Submit(configure.epoch(), number);
  for (uint64_t number = 1; number <= 100; ++number) {
    EXPECT_EQ(session->NextCommand().step_plan().plan(), number);  // in order
  }
  for (uint64_t number = 1; number <= 100; ++number) session->SendResult(configure.epoch(), number);
  events_.WaitForResults(100);
}

TEST_F(WorkerSessionServiceTest, MessageThatIsNotAllowedEndsTheSession) {
  const auto session = Join();
  const uint64_t epoch = session->NextCommand().epoch();
  session->SendReady(epoch);
  events_.WaitForReady(1);
  session->SendResult(epoch, 5);  // there is no plan
  const grpc::Status status = session->End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("result without a plan"));
  events_.WaitForLost(1);
}

TEST_F(WorkerSessionServiceTest, EndOfTheConnectionIsALoss) {
  const auto session = Join();
  session->SendReady(session->NextCommand().epoch());
  events_.WaitForReady(1);
  session->Cancel();
  events_.WaitForLost(1);
  EXPECT_EQ(cluster_.status().members[0].state, v1::WORKER_STATE_DEAD);
}

TEST_F(WorkerSessionServiceTest, SecondSessionFencesTheFirst) {
  const auto first = Join();
  const uint64_t epoch = first->NextCommand().epoch();
  first->SendReady(epoch);
  events_.WaitForReady(1);
  const auto second = Join();
  EXPECT_EQ(first->End().error_code(), grpc::StatusCode::ABORTED);
  const uint64_t next_epoch = second->NextCommand().epoch();
  EXPECT_GT(next_epoch, epoch);
  second->SendReady(next_epoch);
  EXPECT_EQ(events_.WaitForReady(2), next_epoch);
  // What was recorded of the old epoch is refused on the new session, too.
  Submit(next_epoch, 1);
  second->SendResult(epoch, 1);
  second->SendResult(next_epoch, 1);
  events_.WaitForResults(1);
  EXPECT_EQ(events_.num_results(), 1);
  EXPECT_EQ(cluster_.status().num_stale_messages, 1);
}

TEST_F(WorkerSessionServiceTest, EventsBeginWithWhereTheGroupStands) {
  worker_.Stop();
  const auto session = Join();
  const uint64_t epoch = session->NextCommand().epoch();
  session->SendReady(epoch);
  EventCounter late;
  RemoteWorker worker(cluster_, WorkerCapacity{});
  worker.Start(late);
  EXPECT_EQ(late.WaitForReady(1), epoch);
}

TEST_F(WorkerSessionServiceTest, PlanOfOurOwnThatIsWrongEndsTheGroup) {
  const auto session = Join();
  const uint64_t epoch = session->NextCommand().epoch();
  session->SendReady(epoch);
  events_.WaitForReady(1);
  Submit(epoch, 1);
  Submit(epoch, 1);
  events_.WaitForLost(1);
  EXPECT_EQ(cluster_.status().state, GroupState::kStopped);
}

}  // namespace
}  // namespace switchyard::coordinator
