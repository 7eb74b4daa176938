// Groups of several workers: forming, links that break, places that stay empty. What holds for any
// number of workers is in cluster_test.cc.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "base/status.h"
#include "coordinator/cluster.h"

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

// One worker as the coordinator sees it.
struct Peer {
  std::string id;
  uint32_t pid = 0;
  uint64_t lease = 0;
  uint64_t heartbeat = 0;
  bool is_open = false;
  std::vector<v1::WorkerSessionResponse> messages;  // since TakeCommands()
};

class PeerStream : public WorkerStream {
 public:
  explicit PeerStream(Peer& peer) : peer_(peer) {}
  void Send(v1::WorkerSessionResponse message) override {
    if (!message.has_heartbeat()) peer_.messages.push_back(std::move(message));
  }
  void Close(const absl::Status&) override { peer_.is_open = false; }

 private:
  Peer& peer_;
};

class EventLog : public ClusterEvents {
 public:
  void OnReady(uint64_t) override { events.emplace_back("ready"); }
  void OnResult(const v1::StepResult& result) override {
    events.push_back(fmt::format("result {}", result.plan()));
  }
  void OnLeaving() override { events.emplace_back("leaving"); }
  void OnLost(const absl::Status& status, bool returns) override {
    events.emplace_back(returns ? "lost" : "lost for good");
    last_loss = status;
  }
  void OnStaleProcess(const std::string& worker_id, uint32_t) override {
    events.push_back("kill " + worker_id);
  }
  std::vector<std::string> Take() { return std::exchange(events, {}); }

  std::vector<std::string> events;
  absl::Status last_loss;
};

class ClusterGroupTest : public testing::Test {
 protected:
  ClusterGroupTest() {
    InitLogging({.threshold = LogLevel::kOff});
    options_.configure.set_model_path("/models/a.gguf");
    options_.configure.set_model_digest("sha256:a");
    v1::WorkerSizes& sizes = *options_.configure.mutable_sizes();
    sizes.set_num_slots(2);
    sizes.set_num_pages(8);
    sizes.set_max_context(128);
    sizes.set_max_step_rows(64);
    options_.vocab_size = 100;
    options_.replan_seconds = 5;
  }

  // Makes the cluster, and as many peers "a", "b", ...
  void Make(int world_size, placement::v1::Mode mode = placement::v1::MODE_EXPERT_PARALLEL) {
    options_.placement.set_mode(mode);
    options_.placement.set_world_size(static_cast<uint32_t>(world_size));
    cluster_ = std::make_unique<Cluster>(options_, clock_, log_);
    for (int i = 0; i < world_size; ++i) {
      peers_.push_back(std::make_unique<Peer>());
      peers_.back()->id = std::string(1, static_cast<char>('a' + i));
    }
  }
  void AllowSmallerGroups() {
    options_.replan = [](int world_size) -> absl::StatusOr<placement::v1::Placement> {
      placement::v1::Placement placement;
      placement.set_mode(world_size == 1 ? placement::v1::MODE_SINGLE
                                         : placement::v1::MODE_EXPERT_PARALLEL);
      placement.set_world_size(static_cast<uint32_t>(world_size));
      return placement;
    };
  }

  Peer& peer(size_t i) { return *peers_[i]; }
  ClusterStatus status() { return cluster_->status(); }

  v1::RegisterWorkerRequest RegistrationOf(Peer& peer) {
    v1::RegisterWorkerRequest request;
    request.set_worker_id(peer.id);
    request.set_protocol_version(kWorkerProtocolVersion);
    peer.pid = ++last_pid_;
    request.set_incarnation(peer.pid);
    request.set_pid(peer.pid);
    request.set_host("here");
    return request;
  }
  void Join(Peer& peer) { Join(peer, RegistrationOf(peer)); }
  void Join(Peer& peer, const v1::RegisterWorkerRequest& request) {
    const auto response = cluster_->Register(request);
    ASSERT_TRUE(response.ok()) << response.status();
    peer.lease = response->lease_id();
    peer.heartbeat = 0;
    peer.is_open = true;
    peer.messages.clear();
    ASSERT_EQ(cluster_->OpenSession(peer.lease, std::make_unique<PeerStream>(peer)),
              absl::OkStatus());
  }
  // The survivors enter the next epoch.
  void Crash(Peer& dead) {
    cluster_->OnSessionClosed(dead.lease, Unavailable("connection reset"));
    for (auto& peer : peers_) {
      if (peer->is_open) Enter(*peer);
    }
  }

  void Send(Peer& peer, uint64_t epoch,
            const std::function<void(v1::WorkerSessionRequest&)>& fill) {
    v1::WorkerSessionRequest message;
    message.set_lease_id(peer.lease);
    message.set_epoch(epoch);
    fill(message);
    cluster_->OnMessage(peer.lease, message);
  }
  void SendLost(Peer& peer, uint64_t epoch, const std::string& text = "link to rank 1 is cut") {
    Send(peer, epoch, [&](auto& m) {
      m.mutable_group_lost()->set_code(14);
      m.mutable_group_lost()->set_message(text);
    });
  }
  void SendEntry(Peer& peer, uint64_t epoch, const std::string& key, const std::string& data) {
    Send(peer, epoch, [&](auto& m) {
      m.mutable_rendezvous_entry()->set_key(key);
      m.mutable_rendezvous_entry()->set_data(data);
    });
  }

  // Answers Configure and BeginEpoch of the present epoch, not FormGroup.
  void Enter(Peer& peer) {
    for (const auto& command : std::exchange(peer.messages, {})) {
      if (command.has_configure()) {
        Send(peer, command.epoch(), [](auto& m) { m.mutable_shard_ready(); });
      } else if (command.has_begin_epoch() && command.epoch() == cluster_->epoch()) {
        Send(peer, command.epoch(), [](auto& m) { m.mutable_epoch_entered(); });
      } else {
        peer.messages.push_back(command);
      }
    }
  }
  void Formed(Peer& peer) {
    Send(peer, cluster_->epoch(), [](auto& m) { m.mutable_group_formed(); });
  }
  // Brings all who have a session into service.
  void Serve() {
    for (auto& peer : peers_) {
      if (peer->is_open) Enter(*peer);
    }
    for (auto& peer : peers_) {
      if (peer->is_open && HasFormGroup(*peer)) Formed(*peer);
    }
  }
  void JoinAndServe() {
    for (auto& peer : peers_) Join(*peer);
    Serve();
    ASSERT_THAT(log_.Take(), ElementsAre("ready"));
  }
  bool HasFormGroup(const Peer& peer) const {
    return std::any_of(peer.messages.begin(), peer.messages.end(), [&](const auto& m) {
      return m.has_form_group() && m.epoch() == cluster_->epoch();
    });
  }
  static const v1::Configure* LastConfigure(const Peer& peer) {
    const v1::Configure* last = nullptr;
    for (const auto& m : peer.messages) {
      if (m.has_configure()) last = &m.configure();
    }
    return last;
  }

  void Pass(double seconds) {
    for (int i = 1; i <= static_cast<int>(seconds * 10 + 0.5); ++i) {
      clock_.now += 0.1;
      if (++num_passed_ % 5 == 0) {
        for (auto& peer : peers_) {
          if (!peer->is_open || peer->id == silent_) continue;
          Send(*peer, 0,
               [&](auto& m) { m.mutable_heartbeat()->set_sequence_number(++peer->heartbeat); });
        }
      }
      cluster_->Tick();
    }
  }
  void Submit(uint64_t number) {
    v1::StepPlan plan;
    plan.set_epoch(cluster_->epoch());
    plan.set_plan(number);
    plan.set_run_ahead(1);
    plan.add_decode()->set_incarnation(1);
    EXPECT_EQ(cluster_->Submit(plan), absl::OkStatus());
  }
  static bool HasPlan(const Peer& peer) {
    return std::any_of(peer.messages.begin(), peer.messages.end(),
                       [](const auto& m) { return m.has_step_plan(); });
  }

  HandClock clock_;
  EventLog log_;
  ClusterOptions options_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::string silent_;  // sends no heartbeats
  uint32_t last_pid_ = 100;
  int num_passed_ = 0;  // tenths of a second
};

// ---- forming ------------------------------------------------------------------------------------

TEST_F(ClusterGroupTest, EachMemberGetsItsShareAndTheLeadThePlans) {
  Make(3, placement::v1::MODE_LAYER_SPLIT);
  for (size_t i = 0; i < 3; ++i) {
    Join(peer(i));
    ASSERT_NE(LastConfigure(peer(i)), nullptr);
    EXPECT_EQ(LastConfigure(peer(i))->rank(), i);
    EXPECT_EQ(LastConfigure(peer(i))->placement().world_size(), 3u);
  }
  Serve();
  EXPECT_THAT(log_.Take(), ElementsAre("ready"));
  Submit(1);
  EXPECT_FALSE(HasPlan(peer(0)));
  EXPECT_FALSE(HasPlan(peer(1)));
  EXPECT_TRUE(HasPlan(peer(2)));  // the last stage has the output matrix
}

TEST_F(ClusterGroupTest, RanksLinkUpOnlyOnceAllAreInTheEpoch) {
  Make(2);
  Join(peer(0));
  Join(peer(1));
  Enter(peer(0));
  EXPECT_FALSE(HasFormGroup(peer(0)));
  Enter(peer(1));
  EXPECT_TRUE(HasFormGroup(peer(0)));
  EXPECT_TRUE(HasFormGroup(peer(1)));
  Formed(peer(0));
  EXPECT_THAT(log_.Take(), IsEmpty());
  Formed(peer(1));
  EXPECT_THAT(log_.Take(), ElementsAre("ready"));
}

TEST_F(ClusterGroupTest, RanksOfOneHostShareMemoryAndOthersUseTheNetwork) {
  Make(2);
  Join(peer(0));
  Join(peer(1));
  Serve();
  const auto backend = [&] {
    for (const auto& m : peer(0).messages) {
      if (m.has_form_group()) return m.form_group().backend();
    }
    return std::string();
  };
  EXPECT_EQ(backend(), "shm");
  Crash(peer(1));
  v1::RegisterWorkerRequest request = RegistrationOf(peer(1));
  request.set_host("there");
  peer(0).messages.clear();
  Join(peer(1), request);
  Serve();
  EXPECT_EQ(backend(), "ucx");
}

TEST_F(ClusterGroupTest, GathersWhatRanksSayAndAnswersAllAtOnce) {
  Make(2);
  Join(peer(0));
  Join(peer(1));
  Enter(peer(0));
  Enter(peer(1));
  const uint64_t epoch = cluster_->epoch();
  peer(0).messages.clear();
  peer(1).messages.clear();
  SendEntry(peer(1), epoch, "tensor", "one");
  EXPECT_THAT(peer(1).messages, IsEmpty());
  SendEntry(peer(0), epoch, "tensor", "zero");
  for (size_t i : {0, 1}) {
    ASSERT_EQ(peer(i).messages.size(), 1u);
    const v1::RendezvousData& data = peer(i).messages[0].rendezvous_data();
    EXPECT_EQ(data.key(), "tensor");
    EXPECT_THAT(data.entries(), ElementsAre("zero", "one"));
  }
}

TEST_F(ClusterGroupTest, DropsWhatRanksSaidInAnOlderEpoch) {
  Make(2);
  JoinAndServe();
  const uint64_t old_epoch = cluster_->epoch();
  const int64_t num_before = status().num_stale_messages;
  SendLost(peer(0), old_epoch);
  Enter(peer(0));
  Enter(peer(1));
  SendEntry(peer(1), old_epoch, "tensor", "old");
  SendEntry(peer(0), cluster_->epoch(), "tensor", "zero");
  SendLost(peer(1), old_epoch);  // of the same break
  EXPECT_EQ(status().num_stale_messages, num_before + 2);
  EXPECT_EQ(status().num_link_losses, 1);
  peer(1).messages.clear();
  SendEntry(peer(1), cluster_->epoch(), "tensor", "one");
  ASSERT_EQ(peer(1).messages.size(), 1u);
  EXPECT_THAT(peer(1).messages[0].rendezvous_data().entries(), ElementsAre("zero", "one"));
}

TEST_F(ClusterGroupTest, FormingMessagesAtAnotherTimeAreFaults) {
  const std::vector<std::function<void(v1::WorkerSessionRequest&)>> messages = {
      [](auto& m) { m.mutable_rendezvous_entry()->set_key("k"); },
      [](auto& m) { m.mutable_group_formed(); },
      [](auto& m) { m.mutable_group_lost()->set_code(14); },
  };
  for (const auto& fill : messages) {
    peers_.clear();
    Make(2);
    Join(peer(0));
    Send(peer(0), cluster_->epoch(), fill);
    EXPECT_EQ(status().num_faults, 1);
    EXPECT_FALSE(peer(0).is_open);
  }
}

TEST_F(ClusterGroupTest, MemberThatNeverLinksUpIsLost) {
  Make(2);
  Join(peer(0));
  Join(peer(1));
  Enter(peer(0));
  Enter(peer(1));
  Formed(peer(0));
  Pass(14.8);
  EXPECT_TRUE(peer(1).is_open);
  Pass(0.5);
  EXPECT_FALSE(peer(1).is_open);
  EXPECT_TRUE(peer(0).is_open);
  EXPECT_THAT(log_.Take(), ElementsAre("kill b"));
}

// ---- losses -------------------------------------------------------------------------------------

TEST_F(ClusterGroupTest, DeathOfAnyRankIsALossAndSurvivorsKeepTheirShares) {
  Make(4);
  JoinAndServe();
  for (size_t dead = 0; dead < 4; ++dead) {
    for (auto& p : peers_) p->messages.clear();
    Crash(peer(dead));
    EXPECT_THAT(log_.Take(), ElementsAre("lost"));
    Join(peer(dead));
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(LastConfigure(peer(i)) != nullptr, i == dead) << i;
      EXPECT_EQ(status().members[i].worker_id, peer(i).id);
    }
    Serve();
    EXPECT_THAT(log_.Take(), ElementsAre("ready"));
  }
}

TEST_F(ClusterGroupTest, SilenceOfAnyRankHoldsPlansAndIsDeathAfterFiveSeconds) {
  for (const char* silent : {"a", "b", "c"}) {
    peers_.clear();
    Make(3);
    JoinAndServe();
    silent_ = silent;
    Pass(2);
    Submit(1);
    EXPECT_FALSE(HasPlan(peer(0)));
    Pass(2.9);
    EXPECT_THAT(log_.Take(), IsEmpty());
    Pass(0.4);
    EXPECT_THAT(log_.Take(), ElementsAre(std::string("kill ") + silent, "lost"));
  }
}

TEST_F(ClusterGroupTest, BrokenLinkIsALossOfNobody) {
  Make(2);
  JoinAndServe();
  Submit(1);
  SendLost(peer(1), cluster_->epoch(), "link to rank 0\nis cut");
  EXPECT_THAT(log_.Take(), ElementsAre("lost"));
  EXPECT_THAT(std::string(log_.last_loss.message()), HasSubstr("rank 1: link to rank 0 is cut"));
  EXPECT_TRUE(peer(0).is_open);
  EXPECT_TRUE(peer(1).is_open);
  Serve();
  EXPECT_THAT(log_.Take(), ElementsAre("ready"));  // at once
  EXPECT_EQ(status().num_losses, 0);
}

TEST_F(ClusterGroupTest, LinksThatBreakAgainAndAgainAreTriedMoreAndMoreSeldomAndGivenUp) {
  Make(2);
  JoinAndServe();
  int num_attempts = 0;
  const double start = clock_.now;
  SendLost(peer(0), cluster_->epoch());
  while (status().state != GroupState::kStopped && clock_.now - start < 200) {
    Enter(peer(0));
    Enter(peer(1));
    if (HasFormGroup(peer(0))) {
      ++num_attempts;
      peer(0).messages.clear();
      SendLost(peer(0), cluster_->epoch());
    }
    Pass(0.1);
  }
  EXPECT_THAT(log_.Take(), ElementsAre("lost", "lost for good"));
  EXPECT_THAT(std::string(log_.last_loss.message()), HasSubstr("link to rank 1 is cut"));
  EXPECT_GE(clock_.now - start, 60);
  EXPECT_LE(clock_.now - start, 66);
  EXPECT_GE(num_attempts, 8);
  EXPECT_LE(num_attempts, 20);
}

TEST_F(ClusterGroupTest, StepShowsThatLinksWork) {
  Make(2);
  JoinAndServe();
  for (uint64_t i = 1; i <= 50; ++i) {  // far more than would be given up
    SendLost(peer(1), cluster_->epoch());
    Serve();
    ASSERT_EQ(status().state, GroupState::kServing) << i;
    Submit(i);
    Send(peer(0), cluster_->epoch(), [&](auto& m) {
      m.mutable_step_result()->set_plan(i);
      m.mutable_step_result()->set_last_of_plan(true);
    });
    Pass(2);
    peer(0).messages.clear();
  }
}

TEST_F(ClusterGroupTest, StepThatHangsFindsTheRankThatHangs) {
  Make(2);
  JoinAndServe();
  Submit(1);
  Pass(0.1);
  Send(peer(0), cluster_->epoch(), [](auto& m) {
    m.mutable_step_result()->set_plan(1);
    m.mutable_step_result()->set_last_of_plan(true);
  });
  log_.Take();
  Submit(2);
  Pass(6.4);
  EXPECT_THAT(log_.Take(), IsEmpty());
  Pass(0.3);  // 3 s for the step, 3.5 s under suspicion
  EXPECT_THAT(log_.Take(), ElementsAre("lost"));
  Enter(peer(0));  // it only waited for the other, which is alive and does not come
  Pass(5.2);
  EXPECT_TRUE(peer(0).is_open);
  EXPECT_FALSE(peer(1).is_open);
  EXPECT_THAT(log_.Take(), ElementsAre("kill b"));
}

// ---- places -------------------------------------------------------------------------------------

TEST_F(ClusterGroupTest, PlacesAreKeptForTheWorkersOfALauncher) {
  options_.worker_ids = {"a", "b", "c"};
  Make(3);
  for (const size_t i : {2, 0, 1}) Join(peer(i));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(status().members[i].worker_id, peer(i).id);
    EXPECT_EQ(LastConfigure(peer(i))->rank(), i);
  }
}

TEST_F(ClusterGroupTest, WorkerOfAnotherNameFindsNoKeptPlace) {
  options_.worker_ids = {"a", "b"};
  Make(2);
  Peer other;
  other.id = "x";
  EXPECT_EQ(cluster_->Register(RegistrationOf(other)).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(ClusterGroupTest, LauncherMayNumberWorkers) {
  Make(3);
  v1::RegisterWorkerRequest request = RegistrationOf(peer(0));
  request.set_wanted_rank(2);
  Join(peer(0), request);
  EXPECT_EQ(status().members[2].worker_id, "a");
  request = RegistrationOf(peer(1));
  request.set_wanted_rank(2);  // taken
  Join(peer(1), request);
  EXPECT_EQ(status().members[0].worker_id, "b");
}

TEST_F(ClusterGroupTest, GoesOnWithoutAMemberThatDoesNotComeBack) {
  AllowSmallerGroups();
  Make(3);
  JoinAndServe();
  Crash(peer(1));
  EXPECT_THAT(log_.Take(), ElementsAre("lost"));
  Pass(4.9);
  EXPECT_FALSE(status().is_degraded);
  for (auto& p : peers_) p->messages.clear();
  Pass(0.3);
  EXPECT_TRUE(status().is_degraded);
  EXPECT_EQ(LastConfigure(peer(0))->rank(), 0u);
  EXPECT_EQ(LastConfigure(peer(2))->rank(), 1u);
  EXPECT_EQ(LastConfigure(peer(2))->placement().world_size(), 2u);
  Serve();
  EXPECT_THAT(log_.Take(), ElementsAre("ready"));
  EXPECT_EQ(status().members[1].rank, -1);
  EXPECT_EQ(status().members[2].rank, 1);

  Join(peer(1));  // back after all
  EXPECT_FALSE(status().is_degraded);
  EXPECT_THAT(log_.Take(), ElementsAre("lost"));
  Serve();
  EXPECT_THAT(log_.Take(), ElementsAre("ready"));
  EXPECT_EQ(status().members[2].rank, 2);
}

TEST_F(ClusterGroupTest, LastSurvivorComputesAlone) {
  AllowSmallerGroups();
  Make(2);
  JoinAndServe();
  Crash(peer(0));
  Pass(5.2);
  Serve();
  EXPECT_THAT(log_.Take(), ElementsAre("lost", "ready"));
  EXPECT_EQ(status().placement.mode(), placement::v1::MODE_SINGLE);
  Submit(1);
  EXPECT_TRUE(HasPlan(peer(1)));
}

TEST_F(ClusterGroupTest, WhoIsTooManyForASmallerPlacementWaits) {
  options_.replan = [](int world_size) -> absl::StatusOr<placement::v1::Placement> {
    if (world_size == 3) return InvalidArgument("tensor cannot be cut for 3 workers");
    placement::v1::Placement placement;
    placement.set_mode(placement::v1::MODE_EXPERT_PARALLEL);
    placement.set_world_size(static_cast<uint32_t>(world_size));
    return placement;
  };
  Make(4);
  JoinAndServe();
  Crash(peer(0));
  Pass(5.2);
  EXPECT_EQ(status().members[3].rank, -1);
  Serve();
  EXPECT_THAT(log_.Take(), ElementsAre("lost", "ready"));
  Crash(peer(3));  // it has no part in anything
  EXPECT_THAT(log_.Take(), IsEmpty());
  EXPECT_EQ(status().state, GroupState::kServing);
}

TEST_F(ClusterGroupTest, GroupThatNeverServedWaitsForAll) {
  AllowSmallerGroups();
  Make(2);
  Join(peer(0));
  Enter(peer(0));
  Pass(100);
  EXPECT_EQ(status().state, GroupState::kForming);
  EXPECT_FALSE(status().is_degraded);
}

TEST_F(ClusterGroupTest, GroupWithoutSmallerPlacementsWaitsForTheLostOne) {
  Make(2);
  JoinAndServe();
  Crash(peer(0));
  Pass(100);
  EXPECT_EQ(status().state, GroupState::kReconfiguring);
  Join(peer(0));
  Serve();
  EXPECT_THAT(log_.Take(), ElementsAre("lost", "ready"));
}

TEST_F(ClusterGroupTest, ProcessThatNeverReturnsIsDoneWithoutAtOnce) {
  AllowSmallerGroups();
  Make(2);
  JoinAndServe();
  cluster_->OnProcessExit("b", peer(1).pid, ResourceExhausted("no memory"), /*returns=*/false);
  EXPECT_TRUE(status().is_degraded);
  Serve();
  EXPECT_THAT(log_.Take(), ElementsAre("lost", "ready"));
}

TEST_F(ClusterGroupTest, ShareThatIsLoadedForNothingIsNotTakenForTheOther) {
  AllowSmallerGroups();
  Make(3);
  JoinAndServe();
  Crash(peer(0));
  Crash(peer(1));
  Join(peer(1));  // loads its share of three
  Enter(peer(2));
  const uint64_t first_epoch = cluster_->epoch();
  Pass(5.2);  // the others do without the first
  ASSERT_TRUE(status().is_degraded);
  Send(peer(1), 0, [](auto& m) {
    m.mutable_shard_progress()->set_done_bytes(9);
    m.mutable_shard_progress()->set_total_bytes(9);
  });
  Send(peer(1), first_epoch, [](auto& m) { m.mutable_shard_ready(); });
  EXPECT_EQ(status().members[1].state, v1::WORKER_STATE_LOADING);
  Send(peer(1), 0, [](auto& m) {
    m.mutable_shard_progress()->set_done_bytes(1);
    m.mutable_shard_progress()->set_total_bytes(9);
  });
  EXPECT_TRUE(peer(1).is_open);
}

}  // namespace
}  // namespace switchyard::coordinator
