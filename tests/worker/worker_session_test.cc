// A worker's membership, against a coordinator that is played by hand.
#include "worker/worker_session.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <google/protobuf/util/time_util.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "switchyard/worker/v1/session.grpc.pb.h"

#include "base/log.h"
#include "base/status.h"
#include "model/model_digest.h"
#include "worker/engine_harness.h"

namespace switchyard::worker {
namespace {

using SessionStream = grpc::ServerReaderWriter<v1::WorkerSessionResponse, v1::WorkerSessionRequest>;

// Gives everybody a lease and plays its session.
class HandCoordinator final : public v1::CoordinatorService::Service {
 public:
  explicit HandCoordinator(std::function<grpc::Status(SessionStream&)> play)
      : play_(std::move(play)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = fmt::format("127.0.0.1:{}", port);
  }
  ~HandCoordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  const std::string& address() const { return address_; }

  std::atomic<int64_t> lease_milliseconds = 60'000;

  grpc::Status RegisterWorker(grpc::ServerContext*, const v1::RegisterWorkerRequest*,
                              v1::RegisterWorkerResponse* response) override {
    response->set_lease_id(1);
    response->mutable_heartbeat_interval()->set_nanos(10'000'000);
    response->mutable_lease_ttl()->set_nanos(
        static_cast<int32_t>(lease_milliseconds * 1'000'000 % 1'000'000'000));
    response->mutable_lease_ttl()->set_seconds(lease_milliseconds / 1000);
    return grpc::Status::OK;
  }
  grpc::Status WorkerSession(grpc::ServerContext*, SessionStream* stream) override {
    return play_(*stream);
  }

 private:
  std::function<grpc::Status(SessionStream&)> play_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// The next message that is no sign of life; false at the end of the session.
bool ReadNews(SessionStream& stream, v1::WorkerSessionRequest& message) {
  while (stream.Read(&message)) {
    if (!message.has_heartbeat() && !message.has_residency()) return true;
  }
  return false;
}

void WriteShutdown(SessionStream& stream) {
  v1::WorkerSessionResponse command;
  command.mutable_shutdown()->set_reason("done");
  stream.Write(command);
}

// Has the base fixture loaded with one slot and so many pages of 64 tokens.
void Load(SessionStream& stream, uint32_t num_pages) {
  v1::WorkerSessionResponse command;
  command.set_command_id(1);
  command.set_epoch(1);
  v1::Configure& configure = *command.mutable_configure();
  configure.set_model_path(FixtureModel("base"));
  configure.set_model_digest(
      model::ModelDigest(model::GgufFile::Open(FixtureModel("base")).value()).value());
  configure.set_kv_type("f32");
  configure.mutable_sizes()->set_num_slots(1);
  configure.mutable_sizes()->set_num_pages(num_pages);
  configure.mutable_sizes()->set_max_context(uint64_t{64} * num_pages);
  configure.mutable_sizes()->set_max_step_rows(4);
  stream.Write(command);
  v1::WorkerSessionRequest message;
  while (ReadNews(stream, message) && !message.has_shard_ready()) {
  }
}

// A plan that starts a sequence with one token and goes on for so many steps.
v1::WorkerSessionResponse PlanCommand(uint64_t number, int32_t token, uint32_t num_steps,
                                      uint32_t num_pages) {
  v1::WorkerSessionResponse command;
  command.set_command_id(1 + number);
  command.set_epoch(1);
  v1::StepPlan& plan = *command.mutable_step_plan();
  plan.set_epoch(1);
  plan.set_plan(number);
  plan.set_run_ahead(num_steps);
  plan.add_starts()->set_incarnation(number);
  plan.mutable_starts(0)->set_max_new_tokens(num_steps);
  v1::PageTableUpdate& table = *plan.add_page_tables();
  for (uint32_t page = 0; page < num_pages; ++page) table.add_pages(page);
  v1::PrefillChunk& chunk = *plan.add_prefill();
  chunk.set_incarnation(number);
  chunk.add_token_ids(static_cast<uint32_t>(token));
  chunk.set_sample(true);
  plan.add_decode()->set_incarnation(number);
  return command;
}

v1::WorkerSessionResponse DrainCommand(int64_t milliseconds) {
  v1::WorkerSessionResponse command;
  command.set_command_id(100);
  command.set_epoch(1);
  *command.mutable_drain()->mutable_deadline() =
      google::protobuf::util::TimeUtil::MillisecondsToDuration(milliseconds);
  return command;
}

class WorkerSessionTest : public testing::Test {
 protected:
  WorkerSessionTest() {
    InitLogging({.threshold = LogLevel::kOff});
    CommandExecutorOptions options;
    options.make_backend = [](const v1::Configure&) {
      return absl::StatusOr<std::unique_ptr<kernels::Backend>>(MakeBackend(kReference));
    };
    executor_ = CommandExecutor::Create("", options).value();
  }

  WorkerSessionOptions OptionsFor(const HandCoordinator& coordinator) const {
    WorkerSessionOptions options;
    options.coordinator = coordinator.address();
    options.registration.set_worker_id("w");
    options.registration.set_incarnation(1);
    return options;
  }

  std::unique_ptr<CommandExecutor> executor_;
};

TEST_F(WorkerSessionTest, WhoIsAskedWhetherToLeaveMayAskTheSession) {
  HandCoordinator coordinator([](SessionStream& stream) {
    v1::WorkerSessionRequest message;
    while (stream.Read(&message)) {
      if (message.heartbeat().state() == v1::WORKER_STATE_DRAINING) WriteShutdown(stream);
    }
    return grpc::Status::OK;
  });
  WorkerSessionOptions options = OptionsFor(coordinator);
  WorkerSession* session = nullptr;
  bool is_registered = false;
  options.on_registered = [&](const auto&) { is_registered = true; };
  options.should_leave = [&] {
    return is_registered && session->state() == v1::WORKER_STATE_REGISTERING;
  };
  WorkerSession the_session(*executor_, options);
  session = &the_session;
  EXPECT_EQ(the_session.Run(), absl::OkStatus());
  EXPECT_EQ(the_session.state(), v1::WORKER_STATE_DRAINING);
}

// The step thread sends results, the session's thread looks after everything: each needs the locks
// of both sides. A session without a pause between two looks meets every result.
TEST_F(WorkerSessionTest, ResultsComeWhileTheSessionLooksAfterTheWorker) {
  const std::vector<int32_t> tokens = ReadTokens(FixturePath("base.tokens.txt"));
  constexpr int kPlans = 20;
  constexpr uint32_t kSteps = 10;
  std::atomic<int> num_results = 0;
  HandCoordinator coordinator([&](SessionStream& stream) {
    Load(stream, /*num_pages=*/1);
    v1::WorkerSessionRequest message;
    for (uint64_t number = 1; number <= kPlans; ++number) {
      stream.Write(PlanCommand(number, tokens[number], kSteps, /*num_pages=*/1));
      do {
        if (!ReadNews(stream, message) || !message.has_step_result()) {
          return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, message.ShortDebugString());
        }
        ++num_results;
      } while (!message.step_result().last_of_plan());
    }
    WriteShutdown(stream);
    while (stream.Read(&message)) {
    }
    return grpc::Status::OK;
  });
  WorkerSessionOptions options = OptionsFor(coordinator);
  options.poll_seconds = 0;
  EXPECT_EQ(WorkerSession(*executor_, options).Run(), absl::OkStatus());
  EXPECT_EQ(num_results, kPlans * static_cast<int>(kSteps));
}

TEST_F(WorkerSessionTest, DrainedWorkerFinishesItsPlansAndEndsTheSession) {
  constexpr uint32_t kSteps = 40;
  std::vector<uint32_t> steps;
  HandCoordinator coordinator([&](SessionStream& stream) {
    Load(stream, /*num_pages=*/1);
    stream.Write(PlanCommand(1, 5, kSteps, /*num_pages=*/1));
    stream.Write(PlanCommand(2, 7, 1, /*num_pages=*/1));
    stream.Write(DrainCommand(/*milliseconds=*/600'000));
    v1::WorkerSessionRequest message;
    while (ReadNews(stream, message)) {
      EXPECT_TRUE(message.has_step_result()) << message.ShortDebugString();
      if (message.step_result().plan() == 2) steps.push_back(message.step_result().step());
    }
    return grpc::Status::OK;
  });
  WorkerSession session(*executor_, OptionsFor(coordinator));
  EXPECT_EQ(session.Run(), absl::OkStatus());
  EXPECT_EQ(steps, std::vector<uint32_t>{0});
  EXPECT_EQ(session.state(), v1::WORKER_STATE_DRAINING);
}

TEST_F(WorkerSessionTest, DrainedWorkerGoesAtTheDeadline) {
  // As many tokens as the model's context has: far more than can be made in that time.
  constexpr uint32_t kNumPages = 128;
  int num_results = 0;
  bool has_ended = false;
  HandCoordinator coordinator([&](SessionStream& stream) {
    Load(stream, kNumPages);
    stream.Write(PlanCommand(1, 5, 64 * kNumPages, kNumPages));
    v1::WorkerSessionRequest message;
    while (ReadNews(stream, message)) {
      if (num_results++ == 0) stream.Write(DrainCommand(/*milliseconds=*/50));
      has_ended = has_ended || message.step_result().last_of_plan();
    }
    return grpc::Status::OK;
  });
  WorkerSession session(*executor_, OptionsFor(coordinator));
  EXPECT_EQ(session.Run(), absl::OkStatus());
  EXPECT_GT(num_results, 0);
  EXPECT_FALSE(has_ended);
}

TEST_F(WorkerSessionTest, EndInGoodOrderEndsTheWorker) {
  HandCoordinator coordinator([](SessionStream& stream) {
    v1::WorkerSessionRequest message;
    stream.Read(&message);
    EXPECT_EQ(message.lease_id(), 1u);
    return grpc::Status::OK;
  });
  EXPECT_EQ(WorkerSession(*executor_, OptionsFor(coordinator)).Run(), absl::OkStatus());
}

TEST_F(WorkerSessionTest, FencedWorkerRegistersAgain) {
  int num_sessions = 0;
  HandCoordinator coordinator([&](SessionStream& stream) {
    v1::WorkerSessionRequest message;
    stream.Read(&message);
    EXPECT_EQ(message.heartbeat().sequence_number(), 1u);
    return ++num_sessions < 3 ? grpc::Status(grpc::StatusCode::ABORTED, "fenced")
                              : grpc::Status::OK;
  });
  WorkerSessionOptions options = OptionsFor(coordinator);
  options.first_retry_seconds = 0.001;
  EXPECT_EQ(WorkerSession(*executor_, options).Run(), absl::OkStatus());
  EXPECT_EQ(num_sessions, 3);
}

TEST_F(WorkerSessionTest, WhatTheCoordinatorRefusesIsNotTriedAgain) {
  HandCoordinator coordinator([](SessionStream& stream) {
    v1::WorkerSessionRequest message;
    stream.Read(&message);
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "sent what it may not");
  });
  const absl::Status status = WorkerSession(*executor_, OptionsFor(coordinator)).Run();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(status), "sent what it may not");
}

TEST_F(WorkerSessionTest, SilentCoordinatorIsLeft) {
  int num_sessions = 0;
  HandCoordinator coordinator([&](SessionStream& stream) {
    v1::WorkerSessionRequest message;
    if (++num_sessions == 2) return grpc::Status::OK;
    while (stream.Read(&message)) {  // says nothing until the worker gives up
    }
    return grpc::Status::OK;
  });
  coordinator.lease_milliseconds = 100;
  WorkerSessionOptions options = OptionsFor(coordinator);
  options.first_retry_seconds = 0.001;
  EXPECT_EQ(WorkerSession(*executor_, options).Run(), absl::OkStatus());
  EXPECT_EQ(num_sessions, 2);
}

}  // namespace
}  // namespace switchyard::worker
