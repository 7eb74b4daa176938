#include "coordinator/cluster.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "base/status.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HandClock : public Clock {
 public:
  double NowSeconds() const override { return now; }
  double now = 1000;
};

// What the coordinator sent on a session, and how it ended.
struct StreamLog {
  std::vector<v1::WorkerSessionResponse> messages;
  std::unique_ptr<absl::Status> end;
};

class LoggedStream : public WorkerStream {
 public:
  explicit LoggedStream(StreamLog& log) : log_(log) {}
  void Send(v1::WorkerSessionResponse message) override {
    EXPECT_EQ(log_.end, nullptr);
    log_.messages.push_back(std::move(message));
  }
  void Close(const absl::Status& status) override {
    EXPECT_EQ(log_.end, nullptr);
    log_.end = std::make_unique<absl::Status>(status);
  }

 private:
  StreamLog& log_;
};

// Events as short texts.
class EventLog : public ClusterEvents {
 public:
  void OnReady(uint64_t epoch) override { events.push_back(fmt::format("ready {}", epoch)); }
  void OnResult(const v1::StepResult& result) override {
    events.push_back(fmt::format("result {}.{}", result.plan(), result.step()));
  }
  void OnLeaving() override { events.push_back("leaving"); }
  void OnLost(const absl::Status& status, bool returns) override {
    events.push_back(returns ? "lost" : "lost for good");
    last_loss = status;
  }
  void OnStaleProcess(const std::string& worker_id, uint32_t pid) override {
    events.push_back(fmt::format("kill {} {}", worker_id, pid));
  }
  std::vector<std::string> Take() { return std::exchange(events, {}); }

  std::vector<std::string> events;
  absl::Status last_loss;
};

v1::RegisterWorkerRequest Registration(const std::string& id = "w", uint64_t incarnation = 1) {
  v1::RegisterWorkerRequest request;
  request.set_worker_id(id);
  request.set_incarnation(incarnation);
  request.set_protocol_version(kWorkerProtocolVersion);
  request.set_pid(static_cast<uint32_t>(100 + incarnation));
  return request;
}

class ClusterTest : public testing::Test {
 protected:
  ClusterTest() {
    InitLogging({.threshold = LogLevel::kOff});
    options_.configure.set_model_path("/models/a.gguf");
    options_.configure.set_model_digest("sha256:a");
    v1::WorkerSizes& sizes = *options_.configure.mutable_sizes();
    sizes.set_num_slots(2);
    sizes.set_num_pages(8);
    sizes.set_max_context(128);
    sizes.set_max_step_rows(64);
    options_.vocab_size = 100;
    Make();
  }

  void Make() { cluster_ = std::make_unique<Cluster>(options_, clock_, log_); }
  // Makes a group of several.
  void Make(int world_size, placement::v1::Mode mode = placement::v1::MODE_EXPERT_PARALLEL) {
    options_.placement.set_mode(mode);
    options_.placement.set_world_size(static_cast<uint32_t>(world_size));
    Make();
  }

  v1::WorkerState state(size_t rank = 0) { return cluster_->status().members[rank].state; }
  GroupState group() { return cluster_->status().state; }

  // Registers and opens a session.
  uint64_t Join(StreamLog& stream, const v1::RegisterWorkerRequest& request = Registration()) {
    const auto response = cluster_->Register(request);
    EXPECT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(cluster_->OpenSession(response->lease_id(), std::make_unique<LoggedStream>(stream)),
              absl::OkStatus());
    return response->lease_id();
  }

  v1::WorkerSessionRequest Message(uint64_t lease, uint64_t epoch) {
    v1::WorkerSessionRequest message;
    message.set_lease_id(lease);
    message.set_epoch(epoch);
    return message;
  }
  void SendReady(uint64_t lease, uint64_t epoch) {
    v1::WorkerSessionRequest message = Message(lease, epoch);
    message.mutable_shard_ready()->set_device("abacus");
    cluster_->OnMessage(lease, message);
  }
  void SendEntered(uint64_t lease, uint64_t epoch) {
    v1::WorkerSessionRequest message = Message(lease, epoch);
    message.mutable_epoch_entered();
    cluster_->OnMessage(lease, message);
  }
  void SendEntry(uint64_t lease, uint64_t epoch, const std::string& key, const std::string& data) {
    v1::WorkerSessionRequest message = Message(lease, epoch);
    message.mutable_rendezvous_entry()->set_key(key);
    message.mutable_rendezvous_entry()->set_data(data);
    cluster_->OnMessage(lease, message);
  }
  void SendFormed(uint64_t lease, uint64_t epoch) {
    v1::WorkerSessionRequest message = Message(lease, epoch);
    message.mutable_group_formed();
    cluster_->OnMessage(lease, message);
  }
  void SendGroupLost(uint64_t lease, uint64_t epoch, const std::string& text = "no answer") {
    v1::WorkerSessionRequest message = Message(lease, epoch);
    message.mutable_group_lost()->set_code(14);
    message.mutable_group_lost()->set_message(text);
    cluster_->OnMessage(lease, message);
  }
  void SendHeartbeat(uint64_t lease, v1::WorkerState state = v1::WORKER_STATE_READY) {
    v1::WorkerSessionRequest message = Message(lease, 0);
    message.mutable_heartbeat()->set_sequence_number(++heartbeat_);
    message.mutable_heartbeat()->set_state(state);
    cluster_->OnMessage(lease, message);
  }
  void SendResult(uint64_t lease, uint64_t epoch, uint64_t plan, uint32_t step, bool last) {
    v1::WorkerSessionRequest message = Message(lease, epoch);
    v1::StepResult& result = *message.mutable_step_result();
    result.set_plan(plan);
    result.set_step(step);
    result.set_last_of_plan(last);
    cluster_->OnMessage(lease, message);
  }
  void Submit(uint64_t epoch, uint64_t number, bool starts = false) {
    v1::StepPlan plan;
    plan.set_epoch(epoch);
    plan.set_plan(number);
    plan.set_run_ahead(2);
    v1::DecodeSlot& decode = *plan.add_decode();
    decode.set_incarnation(1);
    if (starts) plan.add_starts()->set_incarnation(number);
    EXPECT_EQ(cluster_->Submit(plan), absl::OkStatus());
  }
  // Numbers of the plans that were sent on the session.
  static std::vector<uint64_t> PlansOf(const StreamLog& stream) {
    std::vector<uint64_t> plans;
    for (const auto& message : stream.messages) {
      if (message.has_step_plan()) plans.push_back(message.step_plan().plan());
    }
    return plans;
  }

  // Lets time pass in steps of 0.1 s; each of `alive` sends heartbeats.
  void Pass(double seconds, const std::vector<uint64_t>& alive = {}) {
    for (int i = 1; i <= static_cast<int>(seconds * 10 + 0.5); ++i) {
      clock_.now += 0.1;
      if (i % 5 == 0) {
        for (const uint64_t lease : alive) SendHeartbeat(lease);
      }
      cluster_->Tick();
    }
  }

  // Brings the group of one into service; its lease. Epoch 2.
  uint64_t Serve(StreamLog& stream) {
    const uint64_t lease = Join(stream);
    SendReady(lease, 2);
    EXPECT_THAT(log_.Take(), ElementsAre("ready 2"));
    return lease;
  }

  HandClock clock_;
  EventLog log_;
  ClusterOptions options_;
  std::unique_ptr<Cluster> cluster_;
  uint64_t heartbeat_ = 0;
};

// ---- registration -------------------------------------------------------------------------------

TEST_F(ClusterTest, RefusesRegistrationsThatDoNotFit) {
  const auto code_of = [&](auto change) {
    v1::RegisterWorkerRequest request = Registration();
    change(request);
    return cluster_->Register(request).status().code();
  };
  using Request = v1::RegisterWorkerRequest;
  EXPECT_EQ(code_of([](Request& r) { r.set_protocol_version(kWorkerProtocolVersion + 1); }),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code_of([](Request& r) { r.set_model_digest("sha256:b"); }),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code_of([](Request& r) { r.clear_worker_id(); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](Request& r) { r.set_worker_id(std::string(129, 'w')); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](Request& r) { r.set_worker_id("a\nb"); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](Request& r) { r.clear_incarnation(); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](Request& r) { r.set_host(std::string(2000, 'h')); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of([](Request& r) { r.set_model_digest("sha256:a"); }), absl::StatusCode::kOk);
}

TEST_F(ClusterTest, WorkerMustBringAModelIfTheGroupNamesNone) {
  options_.configure.clear_model_path();
  Make();
  EXPECT_EQ(cluster_->Register(Registration()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ClusterTest, SecondWorkerFindsTheGroupComplete) {
  ASSERT_TRUE(cluster_->Register(Registration("a", 1)).ok());
  EXPECT_EQ(cluster_->Register(Registration("b", 2)).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cluster_->Register(Registration("a", 2)).status().code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(ClusterTest, RegistrationEndsWithoutASession) {
  const auto response = cluster_->Register(Registration());
  ASSERT_TRUE(response.ok());
  Pass(10.2);
  EXPECT_THAT(log_.Take(), ElementsAre("kill w 101"));
  StreamLog stream;
  EXPECT_EQ(
      cluster_->OpenSession(response->lease_id(), std::make_unique<LoggedStream>(stream)).code(),
      absl::StatusCode::kNotFound);
}

TEST_F(ClusterTest, StartedProcessMustRegister) {
  cluster_->OnProcessStart("w", 101);
  Pass(9.8);
  StreamLog stream;
  const uint64_t lease = Join(stream);
  SendReady(lease, 2);
  Pass(20, {lease});  // as a member it is judged by its session
  EXPECT_THAT(log_.Take(), ElementsAre("ready 2"));
  cluster_->OnSessionClosed(lease, Unavailable("connection is gone"));
  Pass(9.8);
  EXPECT_THAT(log_.Take(), ElementsAre("lost"));
  Pass(0.4);
  EXPECT_THAT(log_.Take(), ElementsAre("kill w 101"));
  cluster_->OnProcessExit("w", 101, Unavailable("killed"), true);
  Pass(20);
  EXPECT_THAT(log_.Take(), IsEmpty());
}

TEST_F(ClusterTest, LeaseHasOneSession) {
  StreamLog first, second;
  const uint64_t lease = Join(first);
  EXPECT_EQ(cluster_->OpenSession(lease, std::make_unique<LoggedStream>(second)).code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(ClusterTest, SameProcessMayRegisterAgainAndVoidsItsOldLease) {
  StreamLog old_stream, stream;
  const uint64_t old_lease = Serve(old_stream);
  const uint64_t lease = Join(stream);
  EXPECT_NE(lease, old_lease);
  EXPECT_EQ(old_stream.end->code(), absl::StatusCode::kAborted);
  EXPECT_THAT(log_.Take(), ElementsAre("lost"));
  SendHeartbeat(old_lease);
  EXPECT_EQ(cluster_->status().num_stale_messages, 1);
}

// ---- epochs and events --------------------------------------------------------------------------

TEST_F(ClusterTest, ServesOnceTheShardIsLoaded) {
  StreamLog stream;
  const uint64_t lease = Join(stream);
  EXPECT_EQ(group(), GroupState::kForming);
  EXPECT_EQ(state(), v1::WORKER_STATE_LOADING);
  ASSERT_EQ(stream.messages.size(), 1u);
  EXPECT_EQ(stream.messages[0].configure().model_path(), "/models/a.gguf");
  EXPECT_EQ(stream.messages[0].epoch(), 2u);
  EXPECT_THAT(log_.Take(), IsEmpty());
  SendReady(lease, 2);
  EXPECT_THAT(log_.Take(), ElementsAre("ready 2"));
  EXPECT_EQ(group(), GroupState::kServing);
  EXPECT_EQ(state(), v1::WORKER_STATE_READY);
  Submit(2, 1);
  EXPECT_EQ(state(), v1::WORKER_STATE_BUSY);
  SendResult(lease, 2, 1, 0, true);
  EXPECT_THAT(log_.Take(), ElementsAre("result 1.0"));
  EXPECT_EQ(state(), v1::WORKER_STATE_READY);
}

TEST_F(ClusterTest, EndOfASessionIsALossAndTheNextWorkerANewEpoch) {
  StreamLog first, second;
  const uint64_t lease = Serve(first);
  cluster_->OnSessionClosed(lease, Unavailable("reset by peer"));
  EXPECT_THAT(log_.Take(), ElementsAre("lost"));
  EXPECT_THAT(std::string(log_.last_loss.message()), HasSubstr("reset by peer"));
  EXPECT_EQ(group(), GroupState::kReconfiguring);
  cluster_->OnSessionClosed(lease, Unavailable("again"));
  EXPECT_THAT(log_.Take(), IsEmpty());
  SendReady(Join(second, Registration("w", 2)), 4);  // 3 with the loss, 4 with the joining
  EXPECT_THAT(log_.Take(), ElementsAre("ready 4"));
}

TEST_F(ClusterTest, DropsPlansOfAnotherEpoch) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  Submit(1, 7);
  EXPECT_THAT(PlansOf(stream), IsEmpty());
  cluster_->OnSessionClosed(lease, Unavailable("gone"));
  Submit(2, 8);
  Submit(3, 9);  // nobody is there
  EXPECT_THAT(PlansOf(stream), IsEmpty());
}

TEST_F(ClusterTest, DropsAndCountsWhatIsOfAnOlderEpoch) {
  StreamLog first, second;
  Serve(first);
  Submit(2, 1);
  StreamLog stream;
  const uint64_t lease = Join(stream);  // the same process, again
  SendReady(lease, 4);
  log_.Take();
  Submit(4, 2);
  SendResult(lease, 2, 1, 0, true);
  EXPECT_THAT(log_.Take(), IsEmpty());
  EXPECT_EQ(cluster_->status().num_stale_messages, 1);
  SendResult(lease, 4, 2, 0, true);
  EXPECT_THAT(log_.Take(), ElementsAre("result 2.0"));
}

TEST_F(ClusterTest, ProcessExitIsALoss) {
  StreamLog stream;
  Serve(stream);
  cluster_->OnProcessExit("w", 55, Unavailable("another process"), true);
  EXPECT_THAT(log_.Take(), IsEmpty());
  cluster_->OnProcessExit("w", 101, Unavailable("killed by signal 9"), true);
  EXPECT_THAT(log_.Take(), ElementsAre("lost"));
}

TEST_F(ClusterTest, ProcessThatCannotReturnEndsTheGroup) {
  cluster_->OnProcessExit("w", 0, DataLoss("file is damaged"), false);
  EXPECT_THAT(log_.Take(), ElementsAre("lost for good"));
  EXPECT_EQ(log_.last_loss.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(group(), GroupState::kStopped);
  EXPECT_EQ(cluster_->Register(Registration()).status().code(), absl::StatusCode::kUnavailable);
  cluster_->OnProcessExit("w", 0, DataLoss("again"), false);
  EXPECT_THAT(log_.Take(), IsEmpty());
}

TEST_F(ClusterTest, StopClosesSessionsWithoutEvents) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  cluster_->Stop(Unavailable("bye"));
  EXPECT_EQ(*stream.end, Unavailable("bye"));
  SendHeartbeat(lease);
  cluster_->OnSessionClosed(lease, Unavailable("gone"));
  Pass(10);
  EXPECT_THAT(log_.Take(), IsEmpty());
}

TEST_F(ClusterTest, SurvivorsForgetAndKeepTheirWeights) {
  Make(2);
  StreamLog a, b, c;
  const uint64_t lease_a = Join(a, Registration("a", 1));  // epoch 2
  const uint64_t lease_b = Join(b, Registration("b", 2));  // epoch 3: a is told while it loads
  EXPECT_TRUE(a.messages.back().has_begin_epoch());
  SendReady(lease_a, 2);
  SendReady(lease_b, 3);
  EXPECT_THAT(log_.Take(), IsEmpty());
  SendEntered(lease_a, 3);
  EXPECT_THAT(log_.Take(), IsEmpty());
  SendFormed(lease_b, 3);
  SendFormed(lease_a, 3);
  EXPECT_THAT(log_.Take(), ElementsAre("ready 3"));

  cluster_->OnSessionClosed(lease_b, Unavailable("gone"));  // epoch 4
  EXPECT_THAT(log_.Take(), ElementsAre("lost"));
  const uint64_t lease_c = Join(c, Registration("c", 3));  // epoch 5
  EXPECT_EQ(cluster_->status().members[1].worker_id, "c");
  SendEntered(lease_a, 4);  // too late, and counted
  SendReady(lease_c, 5);
  EXPECT_THAT(log_.Take(), IsEmpty());
  SendEntered(lease_a, 5);
  SendFormed(lease_a, 5);
  SendFormed(lease_c, 5);
  EXPECT_THAT(log_.Take(), ElementsAre("ready 5"));
  Submit(5, 1);
  EXPECT_THAT(PlansOf(a), ElementsAre(1));  // rank 0 leads
  EXPECT_THAT(PlansOf(c), IsEmpty());
}

TEST_F(ClusterTest, SurvivorThatDoesNotEnterIsGivenUp) {
  Make(2);
  StreamLog a, b;
  const uint64_t lease_a = Join(a, Registration("a", 1));
  const uint64_t lease_b = Join(b, Registration("b", 2));
  SendReady(lease_a, 2);
  Pass(5.2, {lease_a, lease_b});  // alive, but stuck
  EXPECT_EQ(state(0), v1::WORKER_STATE_DEAD);
  EXPECT_THAT(log_.Take(), ElementsAre("kill a 101"));
}

// ---- time ---------------------------------------------------------------------------------------

TEST_F(ClusterTest, SendsHeartbeatsThatAcknowledge) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  Pass(2, {lease});
  int num_heartbeats = 0;
  for (const auto& message : stream.messages) num_heartbeats += message.has_heartbeat();
  EXPECT_GE(num_heartbeats, 3);
  EXPECT_EQ(stream.messages.back().command_id(), 0u);
  EXPECT_GE(stream.messages.back().heartbeat().acknowledged_sequence_number(), heartbeat_ - 1);
}

TEST_F(ClusterTest, KeepsWhereTheExpertsOfAMemberAre) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  EXPECT_EQ(cluster_->status().members[0].residency, nullptr);
  v1::WorkerSessionRequest message = Message(lease, 0);
  v1::Residency& residency = *message.mutable_residency();
  residency.set_version(4);
  residency.set_num_layers(1);
  residency.set_num_experts(2);
  residency.set_states("\2\1");
  residency.add_uses(3);
  residency.add_uses(0);
  residency.add_layers()->set_hits(3);
  cluster_->OnMessage(lease, message);
  ASSERT_NE(cluster_->status().members[0].residency, nullptr);
  EXPECT_EQ(cluster_->status().members[0].residency->version(), 4u);
  EXPECT_THAT(log_.Take(), IsEmpty());
  // Lists that do not fit each other are a fault.
  residency.set_num_experts(3);
  cluster_->OnMessage(lease, message);
  EXPECT_THAT(log_.Take(), testing::Contains("lost"));
  ASSERT_NE(stream.end, nullptr);
  EXPECT_THAT(std::string(stream.end->message()), testing::HasSubstr("other lengths than experts"));
}

TEST_F(ClusterTest, SilenceOfASecondIsNothing) {
  StreamLog stream;
  Serve(stream);
  Pass(1.2);
  EXPECT_EQ(state(), v1::WORKER_STATE_READY);
  EXPECT_THAT(log_.Take(), IsEmpty());
}

TEST_F(ClusterTest, SuspectGetsNoPlansUntilItIsBack) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  Pass(2);
  EXPECT_EQ(state(), v1::WORKER_STATE_SUSPECT);
  Submit(2, 1);
  EXPECT_THAT(PlansOf(stream), IsEmpty());
  Pass(2);
  SendHeartbeat(lease);
  Pass(0.1);
  EXPECT_EQ(state(), v1::WORKER_STATE_BUSY);
  EXPECT_THAT(PlansOf(stream), ElementsAre(1));
  EXPECT_THAT(log_.Take(), IsEmpty());
}

TEST_F(ClusterTest, SilenceOfFiveSecondsIsDeath) {
  StreamLog stream;
  Serve(stream);
  Pass(4.9);
  EXPECT_THAT(log_.Take(), IsEmpty());
  Pass(0.4);
  EXPECT_THAT(log_.Take(), ElementsAre("kill w 101", "lost"));
  EXPECT_EQ(stream.end->code(), absl::StatusCode::kAborted);
  EXPECT_EQ(state(), v1::WORKER_STATE_DEAD);
}

TEST_F(ClusterTest, ConnectionOfASilentWorkerThatEndsLeavesAStaleProcess) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  Pass(2);
  cluster_->OnSessionClosed(lease, Unavailable("ping was not answered"));
  EXPECT_THAT(log_.Take(), ElementsAre("kill w 101", "lost"));
}

TEST_F(ClusterTest, OwnPauseIsNoSilenceOfOthers) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  Pass(1, {lease});
  clock_.now += 30;  // the coordinator was stopped
  Pass(0.5);
  EXPECT_EQ(state(), v1::WORKER_STATE_READY);
  Pass(5.2);
  EXPECT_EQ(state(), v1::WORKER_STATE_DEAD);
}

TEST_F(ClusterTest, OwnPauseIsNotAddedToWhatCameBehindIt) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  Pass(1, {lease});
  clock_.now += 3600;
  SendHeartbeat(lease);  // had waited, and is handled before the first look at the clock
  Pass(4.9);
  EXPECT_EQ(state(), v1::WORKER_STATE_SUSPECT);
  Pass(0.4);
  EXPECT_EQ(state(), v1::WORKER_STATE_DEAD);
}

TEST_F(ClusterTest, OwnPauseMakesNoStepSlow) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  Submit(2, 1);
  Pass(0.1);
  clock_.now += 30;
  SendResult(lease, 2, 1, 0, false);
  Pass(6.4, {lease});  // 3 s for the second step, 3.5 s under suspicion
  EXPECT_EQ(state(), v1::WORKER_STATE_SUSPECT);
  Pass(0.4, {lease});
  EXPECT_EQ(state(), v1::WORKER_STATE_DEAD);
}

TEST_F(ClusterTest, LoadMayTakeLongAsLongAsItMakesProgress) {
  StreamLog stream;
  const uint64_t lease = Join(stream);
  for (uint64_t i = 1; i <= 3; ++i) {
    Pass(50, {lease});
    v1::WorkerSessionRequest message = Message(lease, 2);
    message.mutable_shard_progress()->set_done_bytes(i);
    message.mutable_shard_progress()->set_total_bytes(3);
    cluster_->OnMessage(lease, message);
  }
  EXPECT_EQ(state(), v1::WORKER_STATE_LOADING);
  EXPECT_EQ(cluster_->status().members[0].loaded_bytes, 3u);
  Pass(60.3, {lease});
  EXPECT_EQ(state(), v1::WORKER_STATE_DEAD);
  EXPECT_THAT(log_.Take(), ElementsAre("kill w 101"));
}

TEST_F(ClusterTest, StepThatTakesFarTooLongIsDeath) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  Submit(2, 1);
  Pass(0.5, {lease});
  SendResult(lease, 2, 1, 0, false);  // half a second: the next may take ten
  Pass(9.9, {lease});
  EXPECT_EQ(state(), v1::WORKER_STATE_BUSY);
  Pass(1, {lease});
  EXPECT_EQ(state(), v1::WORKER_STATE_SUSPECT);
  SendResult(lease, 2, 1, 1, true);
  Pass(0.5, {lease});
  EXPECT_EQ(state(), v1::WORKER_STATE_READY);
  Pass(1000, {lease});  // without a plan no step is due
  EXPECT_EQ(state(), v1::WORKER_STATE_READY);
  log_.Take();
  Submit(2, 2);
  Pass(20 * 11 + 4, {lease});  // the slowest took eleven
  EXPECT_THAT(log_.Take(), ElementsAre("kill w 101", "lost"));
}

TEST_F(ClusterTest, FirstStepOfAllMayTakeLong) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  Submit(2, 1);
  Pass(599, {lease});
  EXPECT_EQ(state(), v1::WORKER_STATE_BUSY);
}

// ---- leaving ------------------------------------------------------------------------------------

TEST_F(ClusterTest, LeavingWorkerFinishesWhatRunsAndIsToldToGo) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  Submit(2, 1);
  SendHeartbeat(lease, v1::WORKER_STATE_DRAINING);
  EXPECT_EQ(state(), v1::WORKER_STATE_DRAINING);
  SendHeartbeat(lease, v1::WORKER_STATE_DRAINING);
  EXPECT_THAT(log_.Take(), ElementsAre("leaving"));  // once
  Submit(2, 2);
  Submit(2, 3, /*starts=*/true);  // the engine had not heard of it yet
  Submit(2, 4);
  EXPECT_THAT(PlansOf(stream), ElementsAre(1, 2, 3, 4));  // nothing is held back
  Pass(0.5);
  for (const uint64_t plan : {1, 2, 3, 4}) SendResult(lease, 2, plan, 0, true);
  EXPECT_FALSE(stream.messages.back().has_shutdown());
  Pass(0.4);
  const auto is_shutdown = [](const v1::WorkerSessionResponse& m) { return m.has_shutdown(); };
  EXPECT_EQ(std::count_if(stream.messages.begin(), stream.messages.end(), is_shutdown), 1);
  log_.Take();
  cluster_->OnSessionClosed(lease, Unavailable("gone"));
  EXPECT_THAT(log_.Take(), ElementsAre("lost"));
  EXPECT_THAT(std::string(log_.last_loss.message()), HasSubstr("has left"));
}

TEST_F(ClusterTest, LeavingWorkerMayGoAtOnceWhenNothingRuns) {
  StreamLog stream;
  const uint64_t lease = Join(stream);
  SendHeartbeat(lease, v1::WORKER_STATE_DRAINING);
  SendReady(lease, 2);
  EXPECT_THAT(log_.Take(), IsEmpty());  // it is never served by
  Pass(0.1);
  EXPECT_TRUE(stream.messages.back().has_shutdown());
}

TEST_F(ClusterTest, WorkerThatWasToldToGoAndStaysIsEndedInGoodOrder) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  SendHeartbeat(lease, v1::WORKER_STATE_DRAINING);
  Pass(0.5, {lease});
  EXPECT_EQ(stream.end, nullptr);
  Pass(5.2, {lease});
  ASSERT_NE(stream.end, nullptr);
  EXPECT_EQ(*stream.end, absl::OkStatus());
  EXPECT_THAT(log_.Take(), ElementsAre("leaving", "kill w 101", "lost"));
}

TEST_F(ClusterTest, DrainTellsTheDeadlineAndLetsNobodyIn) {
  Make(2);
  StreamLog stream;
  const uint64_t lease = Join(stream);
  cluster_->Drain(2.5);
  ASSERT_TRUE(stream.messages.back().has_drain());
  EXPECT_EQ(stream.messages.back().drain().deadline().seconds(), 2);
  EXPECT_EQ(stream.messages.back().drain().deadline().nanos(), 500'000'000);
  EXPECT_GT(stream.messages.back().command_id(), 0u);
  EXPECT_EQ(cluster_->Register(Registration("v", 2)).status().code(),
            absl::StatusCode::kUnavailable);
  cluster_->OnSessionClosed(lease, Unavailable("gone"));
  EXPECT_EQ(state(), v1::WORKER_STATE_DEAD);
}

TEST_F(ClusterTest, DrainEndsTheSessionOfWhoStays) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  Submit(2, 1);
  cluster_->Drain(2);
  EXPECT_THAT(log_.Take(), ElementsAre("leaving"));
  Pass(1.8, {lease});
  SendResult(lease, 2, 1, 0, false);  // what it has goes on
  EXPECT_THAT(log_.Take(), ElementsAre("result 1.0"));
  EXPECT_EQ(stream.end, nullptr);
  Pass(0.4, {lease});
  ASSERT_NE(stream.end, nullptr);
  EXPECT_EQ(*stream.end, absl::OkStatus());
}

// ---- what a worker may not send -----------------------------------------------------------------

class ClusterFaultTest : public ClusterTest {
 protected:
  // Sends one message to a serving group; the session must end for it.
  template <typename Fill>
  void ExpectFault(Fill fill) {
    Make();
    log_.Take();
    StreamLog stream;
    const uint64_t lease = Serve(stream);
    v1::WorkerSessionRequest message = Message(lease, 2);
    fill(message);
    cluster_->OnMessage(lease, message);
    ASSERT_NE(stream.end, nullptr) << message.ShortDebugString();
    EXPECT_EQ(stream.end->code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(log_.Take(), ElementsAre("kill w 101", "lost"));
    EXPECT_EQ(cluster_->status().num_faults, 1);
  }
};

TEST_F(ClusterFaultTest, EndsTheSession) {
  using Request = v1::WorkerSessionRequest;
  ExpectFault([](Request&) {});
  ExpectFault([](Request& m) { m.mutable_heartbeat(); });  // number 0
  ExpectFault([](Request& m) {
    m.mutable_heartbeat()->set_sequence_number(1);
    m.set_lease_id(m.lease_id() + 2);
  });
  ExpectFault([](Request& m) {
    m.mutable_heartbeat()->set_sequence_number(1);
    m.set_epoch(3);
  });
  ExpectFault([](Request& m) {
    m.mutable_heartbeat()->set_sequence_number(1);
    m.set_acknowledged_command_id(2);
  });
  ExpectFault([](Request& m) { m.mutable_shard_progress()->set_total_bytes(5); });
  ExpectFault([](Request& m) { m.mutable_shard_ready(); });
  ExpectFault([](Request& m) { m.mutable_epoch_entered(); });
  ExpectFault([](Request& m) { m.mutable_step_result()->set_plan(1); });
}

TEST_F(ClusterTest, FaultOfAWorkerIsALossAndItsStoryIsTold) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  v1::WorkerSessionRequest message = Message(lease, 2);
  message.mutable_fault()->set_code(8);
  message.mutable_fault()->set_message("no\nmemory");
  cluster_->OnMessage(lease, message);
  EXPECT_THAT(log_.Take(), ElementsAre("lost"));
  EXPECT_THAT(std::string(log_.last_loss.message()), HasSubstr("no memory"));
}

TEST_F(ClusterTest, FailedStepIsALoss) {
  StreamLog stream;
  const uint64_t lease = Serve(stream);
  Submit(2, 1);
  v1::WorkerSessionRequest message = Message(lease, 2);
  message.mutable_step_result()->set_plan(1);
  message.mutable_step_result()->set_error("device is gone");
  cluster_->OnMessage(lease, message);
  EXPECT_THAT(log_.Take(), ElementsAre("lost"));
  EXPECT_THAT(std::string(log_.last_loss.message()), HasSubstr("device is gone"));
}

TEST_F(ClusterTest, ResultOfARankThatDoesNotLeadIsAFault) {
  Make(2);
  StreamLog a, b;
  const uint64_t lease_a = Join(a, Registration("a", 1));
  const uint64_t lease_b = Join(b, Registration("b", 2));
  SendReady(lease_a, 2);
  SendReady(lease_b, 3);
  SendEntered(lease_a, 3);
  SendFormed(lease_a, 3);
  SendFormed(lease_b, 3);
  Submit(3, 1);
  log_.Take();
  SendResult(lease_b, 3, 1, 0, true);
  EXPECT_THAT(log_.Take(), ElementsAre("kill b 102", "lost"));
}

TEST_F(ClusterTest, ProgressMayNotGoBack) {
  StreamLog stream;
  const uint64_t lease = Join(stream);
  v1::WorkerSessionRequest message = Message(lease, 2);
  message.mutable_shard_progress()->set_done_bytes(5);
  message.mutable_shard_progress()->set_total_bytes(9);
  cluster_->OnMessage(lease, message);
  EXPECT_EQ(stream.end, nullptr);
  message.mutable_shard_progress()->set_done_bytes(4);
  cluster_->OnMessage(lease, message);
  EXPECT_NE(stream.end, nullptr);
}

}  // namespace
}  // namespace switchyard::coordinator
