// A cluster and its workers under a simulated clock and network: messages are delayed and reordered
// across workers, streams drop, processes crash, stop and go on, old messages come again. What must
// always hold is checked at each event. A failing seed is printed; it plays the same again with
// SWITCHYARD_SIMULATION_SEED=<seed>.
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/status.h"
#include "coordinator/cluster.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

constexpr double kFaultsEnd = 10;  // seconds; after that nothing new goes wrong
// Then a stopped worker may still have to be found out (10 s if it has not registered, else 5 s),
// be started again and load; and one that was given up when it went on again may meet one more.
constexpr double kQuietEnd = 25;

// Things that happen at their time, in the order of their times.
class Agenda : public Clock {
 public:
  double NowSeconds() const override { return now_; }
  void At(double time, std::function<void()> what) {
    queue_.push({std::max(time, now_), next_++, std::move(what)});
  }
  void After(double seconds, std::function<void()> what) { At(now_ + seconds, std::move(what)); }
  void RunUntil(double end, const std::function<void()>& check) {
    while (!queue_.empty() && queue_.top().time <= end) {
      Entry entry = std::move(const_cast<Entry&>(queue_.top()));
      queue_.pop();
      now_ = entry.time;
      entry.what();
      check();
    }
    now_ = end;
  }

 private:
  struct Entry {
    double time;
    uint64_t number;
    std::function<void()> what;
    bool operator<(const Entry& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  double now_ = 100;
  uint64_t next_ = 0;
  std::priority_queue<Entry> queue_;
};

class Simulation;

// A worker process. Everything that it does waits while it is stopped.
struct SimulatedWorker {
  std::string id;
  bool supervised = false;  // its exits are reported, and stale ones are killed
  int life = 0;             // grows with every crash; what was planned before is void
  uint64_t incarnation = 0;
  uint32_t pid = 0;
  bool runs = false;
  bool stopped = false;
  std::vector<std::function<void()>> waiting;  // for the end of the stop

  int session = 0;  // number of the present one; 0 = none
  uint64_t lease = 0;
  uint64_t epoch = 0;
  bool has_weights = false;
  bool busy = false;  // carries out a command
  std::deque<v1::WorkerSessionResponse> commands;
  uint64_t acknowledged = 0;
  uint64_t heartbeat = 0;
  double heard = 0;
  // Of a group of several.
  uint64_t group_epoch = 0;  // that it forms or has formed; 0 = none
  bool has_formed = false;
  uint32_t group_size = 0;  // of its placement
};

class SimulatedStream : public WorkerStream {
 public:
  SimulatedStream(Simulation& simulation, SimulatedWorker& worker, int session)
      : simulation_(simulation), worker_(worker), session_(session) {}
  void Send(v1::WorkerSessionResponse message) override;
  void Close(const absl::Status& status) override;

 private:
  Simulation& simulation_;
  SimulatedWorker& worker_;
  int session_;
};

class Simulation : public ClusterEvents {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    ClusterOptions options;
    world_size_ = 1 + static_cast<int>(Below(4));
    options.placement.set_mode(world_size_ == 1 ? placement::v1::MODE_SINGLE
                               : Below(2) == 0  ? placement::v1::MODE_LAYER_SPLIT
                                                : placement::v1::MODE_EXPERT_PARALLEL);
    options.placement.set_world_size(static_cast<uint32_t>(world_size_));
    if (Below(2) == 0) {  // others go on without a worker that is away for long
      options.replan = [](int world_size) -> absl::StatusOr<placement::v1::Placement> {
        placement::v1::Placement placement;
        placement.set_mode(world_size == 1 ? placement::v1::MODE_SINGLE
                                           : placement::v1::MODE_EXPERT_PARALLEL);
        placement.set_world_size(static_cast<uint32_t>(world_size));
        return placement;
      };
      options.replan_seconds = 1;
    }
    options.lease_seed = seed;
    options.configure.set_model_digest("sha256:x");
    options.configure.set_model_path("x");
    options.configure.mutable_sizes()->set_num_slots(1);
    options.configure.mutable_sizes()->set_num_pages(1);
    options.configure.mutable_sizes()->set_max_context(64);
    options.configure.mutable_sizes()->set_max_step_rows(8);
    options.vocab_size = 10;
    cluster_ = std::make_unique<Cluster>(options, agenda_, *this);
    // Sometimes one more than there is room for.
    const int num_workers = world_size_ + static_cast<int>(Below(2));
    for (int i = 0; i < num_workers; ++i) {
      SimulatedWorker& worker = *workers_.emplace_back(std::make_unique<SimulatedWorker>());
      worker.id = fmt::format("w{}", i);
      worker.supervised = Below(2) == 0;
      StartProcess(worker);
    }
  }

  // Empty: all went well.
  std::string Run() {
    start_ = agenda_.NowSeconds();
    Tick();
    PlanFault();
    const auto check = [this] { CheckAlways(); };
    agenda_.RunUntil(start_ + kQuietEnd, check);
    if (violation_.empty() && cluster_->status().state != GroupState::kServing) {
      Violate("the group does not serve though nothing is wrong any more");
    }
    const int64_t num_results = num_results_;
    agenda_.RunUntil(start_ + kQuietEnd + 1, check);
    if (violation_.empty() && num_results_ == num_results) Violate("no plan is carried out");
    return violation_;
  }

  int64_t num_losses() const { return cluster_->status().num_losses; }
  int64_t num_stale() const { return cluster_->status().num_stale_messages; }
  bool was_degraded() const { return was_degraded_; }
  int64_t num_link_losses() const { return cluster_->status().num_link_losses; }

  // ---- events of the cluster --------------------------------------------------------------------
  void OnReady(uint64_t epoch) override {
    if (ready_epoch_ != 0) Violate("ready twice");
    if (epoch <= last_epoch_) Violate("epoch did not grow");
    if (epoch != cluster_->epoch()) Violate("ready in another epoch");
    ready_epoch_ = last_epoch_ = epoch;
    submitted_.clear();
    agenda_.After(0, [this] { Plan(); });
  }
  void OnResult(const v1::StepResult& result) override {
    if (ready_epoch_ == 0) Violate("result of a group that is lost");
    if (submitted_.empty() || submitted_.front() != result.plan()) {
      Violate("result of a plan that is not of this epoch");
    } else if (result.last_of_plan()) {
      submitted_.pop_front();
    }
    ++num_results_;
    if (submitted_.size() < 2) {
      const uint64_t epoch = ready_epoch_;
      agenda_.After(0, [this, epoch] {
        if (epoch == ready_epoch_) Plan();
      });
    }
  }
  void OnLeaving() override { Violate("leaves though nobody was asked to"); }
  void OnLost(const absl::Status&, bool returns) override {
    if (ready_epoch_ == 0) Violate("lost what was not ready");
    if (!returns) Violate("lost for good");
    ready_epoch_ = 0;
  }
  void OnStaleProcess(const std::string& worker_id, uint32_t pid) override {
    for (auto& worker : workers_) {
      if (worker->id != worker_id || !worker->supervised || worker->pid != pid) continue;
      const int life = worker->life;
      agenda_.After(0.001, [this, w = worker.get(), life] {
        if (w->life == life && w->runs) Crash(*w);
      });
    }
  }

  // ---- network ----------------------------------------------------------------------------------
  void Deliver(SimulatedWorker& worker, int session, v1::WorkerSessionResponse message) {
    if (message.has_step_plan()) {
      std::set<int>& sessions = sessions_of_epoch_[message.epoch()];
      sessions.insert(session);
      if (sessions.size() > 1) Violate("two workers get plans of one epoch");
      if (message.epoch() != cluster_->epoch()) Violate("plan of an old epoch is sent");
    }
    agenda_.At(
        Arrival(session, 0), [this, &worker, session, message = std::move(message)]() mutable {
          WhenRunning(worker, [this, &worker, session, message = std::move(message)]() mutable {
            if (worker.session != session) return;
            worker.heard = agenda_.NowSeconds();
            if (message.has_heartbeat()) return;
            if (message.has_rendezvous_data()) return OnRendezvous(worker, message);
            if (message.epoch() > worker.group_epoch) CancelForming(worker);
            worker.commands.push_back(std::move(message));
            NextCommand(worker);
          });
        });
  }
  void DeliverEnd(SimulatedWorker& worker, int session) {
    agenda_.At(Arrival(session, 0), [this, &worker, session] {
      WhenRunning(worker, [this, &worker, session] {
        if (worker.session == session) EndSession(worker);
      });
    });
  }

 private:
  // Once in so many times, as long as things go wrong.
  bool IsLinkBroken(uint64_t times) {
    return agenda_.NowSeconds() - start_ < kFaultsEnd && Below(times) == 0;
  }
  uint64_t Below(uint64_t limit) { return random_() % limit; }
  double Between(double low, double high) {
    return low + (high - low) * static_cast<double>(Below(1 << 20)) / (1 << 20);
  }
  void Violate(const std::string& text) {
    if (violation_.empty()) {
      violation_ = fmt::format("{} (at {:.3f} s)", text, agenda_.NowSeconds() - start_);
    }
  }
  // Mostly fast, sometimes not; a stream keeps its order, streams among each other do not.
  double Arrival(int session, int direction) {
    const double delay = Below(50) == 0 ? Between(0.01, 0.4) : Between(0.0001, 0.003);
    double& last = last_arrival_[{session, direction}];
    last = std::max(last, agenda_.NowSeconds() + delay);
    return last;
  }

  void CheckAlways() {
    const uint64_t epoch = cluster_->epoch();
    if (epoch < seen_epoch_) Violate("epoch went back");
    seen_epoch_ = epoch;
    const ClusterStatus status = cluster_->status();
    const bool serving = status.state == GroupState::kServing;
    was_degraded_ = was_degraded_ || (serving && status.is_degraded);
    if (serving != (ready_epoch_ != 0)) Violate("events and state differ");
    if (serving && ready_epoch_ != epoch) Violate("serves in an epoch that nobody was told of");
  }

  void Tick() {
    cluster_->Tick();
    agenda_.After(0.1, [this] { Tick(); });
  }

  // ---- the engine -------------------------------------------------------------------------------
  void Plan() {
    if (ready_epoch_ == 0) return;
    while (submitted_.size() < 2) {
      v1::StepPlan plan;
      plan.set_epoch(ready_epoch_);
      plan.set_plan(++last_plan_);
      plan.set_run_ahead(static_cast<uint32_t>(1 + Below(3)));
      plan.add_decode()->set_incarnation(1);
      submitted_.push_back(last_plan_);
      if (!cluster_->Submit(std::move(plan)).ok()) Violate("plan is refused");
    }
  }

  // ---- faults -----------------------------------------------------------------------------------
  void PlanFault() {
    agenda_.After(Between(0.05, 2.5), [this] {
      if (agenda_.NowSeconds() - start_ > kFaultsEnd) return;
      SimulatedWorker& worker = *workers_[Below(workers_.size())];
      switch (Below(5)) {
        case 0:
          if (worker.runs) Crash(worker);
          break;
        case 1:
        case 2:
          if (worker.runs && !worker.stopped) {
            worker.stopped = true;
            // One that nobody kills goes on some day, so that the group can be complete again.
            const bool forever = worker.supervised && Below(2) == 0;
            const int life = worker.life;
            if (!forever) {
              agenda_.After(Between(0.2, 8), [this, &worker, life] {
                if (worker.life == life) Continue(worker);
              });
            }
          }
          break;
        case 3:
          Drop(worker);
          break;
        default:
          if (!recorded_.empty()) {
            const auto& [lease, message] = recorded_[Below(recorded_.size())];
            const bool is_live = worker.lease == lease && worker.session != 0;
            if (!is_live && !IsLive(lease)) cluster_->OnMessage(lease, message);
          }
      }
      PlanFault();
    });
  }

  bool IsLive(uint64_t lease) {
    for (auto& worker : workers_) {
      if (worker->lease == lease && worker->session != 0) return true;
    }
    return false;
  }

  // The connection breaks; both ends learn of it, each in its own time.
  void Drop(SimulatedWorker& worker) {
    if (worker.session == 0) return;
    const int session = worker.session;
    DeliverEnd(worker, session);
    EndForCluster(session, worker.lease);
  }
  void EndForCluster(int session, uint64_t lease) {
    dropped_.insert(session);
    agenda_.After(Between(0.0001, 0.5), [this, lease] {
      cluster_->OnSessionClosed(lease, Unavailable("connection is gone"));
    });
  }

  void Crash(SimulatedWorker& worker) {
    const uint32_t pid = worker.pid;
    if (worker.session != 0) EndForCluster(worker.session, worker.lease);
    ++worker.life;
    worker.runs = worker.stopped = worker.has_weights = worker.busy = false;
    worker.group_epoch = 0;
    worker.waiting.clear();
    worker.session = 0;
    worker.commands.clear();
    if (worker.supervised) {
      agenda_.After(Between(0.001, 0.01), [this, &worker, pid] {
        cluster_->OnProcessExit(worker.id, pid, Unavailable("killed"), true);
        StartProcess(worker);
      });
    } else {
      agenda_.After(Between(0.1, 3), [this, &worker] { StartProcess(worker); });
    }
  }

  // ---- a worker ---------------------------------------------------------------------------------
  // Runs `what` now, or when the process goes on; never if it ends before.
  void WhenRunning(SimulatedWorker& worker, std::function<void()> what) {
    if (!worker.runs) return;
    if (worker.stopped) {
      worker.waiting.push_back(std::move(what));
    } else {
      what();
    }
  }
  void AfterInLife(SimulatedWorker& worker, double seconds, std::function<void()> what) {
    agenda_.After(seconds, [this, &worker, life = worker.life, what = std::move(what)] {
      if (worker.life == life) WhenRunning(worker, what);
    });
  }
  void Continue(SimulatedWorker& worker) {
    worker.stopped = false;
    for (auto& what : std::exchange(worker.waiting, {})) what();
  }

  void StartProcess(SimulatedWorker& worker) {
    worker.runs = true;
    worker.incarnation = random_() | 1;
    worker.pid = ++last_pid_;
    if (worker.supervised) cluster_->OnProcessStart(worker.id, worker.pid);
    AfterInLife(worker, Between(0.01, 0.1), [this, &worker] { RegisterWorker(worker); });
  }

  void RegisterWorker(SimulatedWorker& worker) {
    v1::RegisterWorkerRequest request;
    request.set_worker_id(worker.id);
    request.set_incarnation(worker.incarnation);
    request.set_protocol_version(kWorkerProtocolVersion);
    request.set_pid(worker.pid);
    agenda_.After(Between(0.0001, 0.02), [this, &worker, life = worker.life, request] {
      const auto response = cluster_->Register(request);
      if (worker.life != life) return;
      AfterInLife(worker, Between(0.0001, 0.02), [this, &worker, response] {
        if (!response.ok()) return RegisterLater(worker);
        Open(worker, response->lease_id());
      });
    });
  }
  void RegisterLater(SimulatedWorker& worker) {
    AfterInLife(worker, Between(0.1, 1), [this, &worker] {
      if (worker.session == 0) RegisterWorker(worker);
    });
  }

  void Open(SimulatedWorker& worker, uint64_t lease) {
    const int session = worker.session = ++last_session_;
    worker.lease = lease;
    worker.epoch = worker.acknowledged = worker.heartbeat = 0;
    worker.heard = agenda_.NowSeconds();
    worker.commands.clear();
    agenda_.At(Arrival(session, 1), [this, &worker, session, lease] {
      const absl::Status status =
          cluster_->OpenSession(lease, std::make_unique<SimulatedStream>(*this, worker, session));
      if (!status.ok()) {
        DeliverEnd(worker, session);
      } else if (dropped_.count(session) > 0) {
        cluster_->OnSessionClosed(lease, Unavailable("connection is gone"));
      }
    });
    Beat(worker, session);
  }
  void EndSession(SimulatedWorker& worker) {
    worker.session = 0;
    worker.commands.clear();
    CancelForming(worker);
    RegisterLater(worker);
  }

  void Beat(SimulatedWorker& worker, int session) {
    if (worker.session != session) return;
    if (agenda_.NowSeconds() - worker.heard > 5) {  // the coordinator is silent
      EndForCluster(session, worker.lease);
      return EndSession(worker);
    }
    v1::WorkerSessionRequest message;
    message.mutable_heartbeat()->set_sequence_number(++worker.heartbeat);
    SendUp(worker, std::move(message));
    AfterInLife(worker, 0.5, [this, &worker, session] { Beat(worker, session); });
  }

  void SendUp(SimulatedWorker& worker, v1::WorkerSessionRequest message) {
    message.set_lease_id(worker.lease);
    message.set_epoch(worker.epoch);
    message.set_acknowledged_command_id(worker.acknowledged);
    if (recorded_.size() < 64) recorded_.emplace_back(worker.lease, message);
    const int session = worker.session;
    agenda_.At(Arrival(session, 1),
               [this, session, lease = worker.lease, message = std::move(message)] {
                 if (dropped_.count(session) == 0) cluster_->OnMessage(lease, message);
               });
  }

  void NextCommand(SimulatedWorker& worker) {
    if (worker.busy || worker.commands.empty()) return;
    worker.busy = true;
    v1::WorkerSessionResponse command = std::move(worker.commands.front());
    worker.commands.pop_front();
    const int session = worker.session;
    if (command.has_configure()) {
      const double seconds = worker.has_weights ? 0.001 : Between(0.05, 1.5);
      return AfterInLife(worker, seconds, [this, &worker, session, command] {
        worker.has_weights = true;
        if (worker.session == session) {
          worker.group_size = command.configure().placement().world_size();
          worker.epoch = command.epoch();
          worker.acknowledged = command.command_id();
          v1::WorkerSessionRequest message;
          message.mutable_shard_ready();
          SendUp(worker, std::move(message));
        }
        Done(worker);
      });
    }
    if (command.has_begin_epoch()) {
      return AfterInLife(worker, Between(0.0001, 0.05), [this, &worker, session, command] {
        if (worker.session == session) {
          worker.epoch = command.epoch();
          worker.acknowledged = command.command_id();
          v1::WorkerSessionRequest message;
          message.mutable_epoch_entered();
          SendUp(worker, std::move(message));
        }
        Done(worker);
      });
    }
    if (command.has_form_group()) return Form(worker, session, command);
    RunStep(worker, session, command, 0);
  }

  // Blocks until the ranks know each other, a newer epoch begins or the time is over.
  void Form(SimulatedWorker& worker, int session, const v1::WorkerSessionResponse& command) {
    if (worker.session != session || worker.epoch != command.epoch()) return Done(worker);
    worker.acknowledged = command.command_id();
    worker.group_epoch = command.epoch();
    worker.has_formed = false;
    if (IsLinkBroken(8)) return LoseGroup(worker, command.epoch());
    v1::WorkerSessionRequest message;
    message.mutable_rendezvous_entry()->set_key("tensor");
    message.mutable_rendezvous_entry()->set_data(fmt::format("{} {}", worker.id, command.epoch()));
    SendUp(worker, std::move(message));
    AfterInLife(worker, 10, [this, &worker, session, epoch = command.epoch()] {
      const bool waits =
          worker.session == session && worker.group_epoch == epoch && !worker.has_formed;
      if (waits) LoseGroup(worker, epoch);
    });
  }
  void OnRendezvous(SimulatedWorker& worker, const v1::WorkerSessionResponse& command) {
    if (worker.group_epoch != command.epoch() || worker.has_formed) return;
    if (command.rendezvous_data().entries_size() != static_cast<int>(worker.group_size))
      Violate("entries are missing");
    for (const std::string& entry : command.rendezvous_data().entries()) {
      if (!entry.ends_with(fmt::format(" {}", command.epoch())))
        Violate("entry is of another epoch");
    }
    AfterInLife(worker, Between(0.0001, 0.05), [this, &worker, epoch = command.epoch()] {
      if (worker.group_epoch != epoch || worker.has_formed) return;
      worker.has_formed = true;
      v1::WorkerSessionRequest message;
      message.mutable_group_formed();
      SendUp(worker, std::move(message));
      Done(worker);
    });
  }
  // A link is broken: from the command thread, which is free then, or from the step thread.
  void LoseGroup(SimulatedWorker& worker, uint64_t epoch) {
    if (worker.group_epoch != epoch) return;
    const bool was_forming = !worker.has_formed;
    worker.group_epoch = 0;
    v1::WorkerSessionRequest message;
    message.mutable_group_lost()->set_code(14);
    SendUp(worker, std::move(message));
    if (was_forming) Done(worker);
  }
  // A newer epoch has come, or the session has ended.
  void CancelForming(SimulatedWorker& worker) {
    const bool was_forming = worker.group_epoch != 0 && !worker.has_formed;
    worker.group_epoch = 0;
    if (was_forming) Done(worker);
  }
  void Done(SimulatedWorker& worker) {
    worker.busy = false;
    NextCommand(worker);
  }

  void RunStep(SimulatedWorker& worker, int session, const v1::WorkerSessionResponse& command,
               uint32_t step) {
    AfterInLife(worker, Between(0.01, 0.2), [this, &worker, session, command, step] {
      const bool is_void = worker.session != session || worker.epoch != command.epoch();
      if (is_void) return Done(worker);
      if (worker.group_size > 1) {
        if (worker.group_epoch != command.epoch()) return Done(worker);  // it has been lost
        if (IsLinkBroken(50)) {
          LoseGroup(worker, command.epoch());
          return Done(worker);
        }
      }
      const v1::StepPlan& plan = command.step_plan();
      const bool last = step + 1 == plan.run_ahead() || !worker.commands.empty();
      worker.acknowledged = command.command_id();
      v1::WorkerSessionRequest message;
      v1::StepResult& result = *message.mutable_step_result();
      result.set_plan(plan.plan());
      result.set_step(step);
      result.set_last_of_plan(last);
      v1::SlotResult& slot = *result.add_slots();
      slot.set_incarnation(1);
      slot.add_token_ids(1);
      SendUp(worker, std::move(message));
      if (last) return Done(worker);
      RunStep(worker, session, command, step + 1);
    });
  }

  std::mt19937_64 random_;
  Agenda agenda_;
  std::unique_ptr<Cluster> cluster_;
  int world_size_ = 1;
  double start_ = 0;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  std::map<std::pair<int, int>, double> last_arrival_;
  std::set<int> dropped_;  // sessions whose messages reach nobody any more
  std::vector<std::pair<uint64_t, v1::WorkerSessionRequest>> recorded_;
  std::map<uint64_t, std::set<int>> sessions_of_epoch_;
  int last_session_ = 0;
  uint32_t last_pid_ = 0;

  uint64_t ready_epoch_ = 0;  // 0 = not ready
  uint64_t last_epoch_ = 0, seen_epoch_ = 0;
  uint64_t last_plan_ = 0;
  std::deque<uint64_t> submitted_;
  int64_t num_results_ = 0;
  bool was_degraded_ = false;  // and served
  std::string violation_;
};

void SimulatedStream::Send(v1::WorkerSessionResponse message) {
  simulation_.Deliver(worker_, session_, std::move(message));
}
void SimulatedStream::Close(const absl::Status&) { simulation_.DeliverEnd(worker_, session_); }

constexpr int kSeedsPerTest = 1250;  // eight tests: 10,000

class ClusterSimulationTest : public testing::TestWithParam<int> {};

TEST_P(ClusterSimulationTest, KeepsItsPromisesAndServesAgain) {
  InitLogging({.threshold = LogLevel::kOff});
  int64_t num_losses = 0;
  int64_t num_stale = 0;
  int64_t num_link_losses = 0;
  int64_t num_degraded = 0;
  const char* chosen = std::getenv("SWITCHYARD_SIMULATION_SEED");
  const uint64_t first = chosen != nullptr ? std::strtoull(chosen, nullptr, 10)
                                           : static_cast<uint64_t>(GetParam() * kSeedsPerTest);
  for (uint64_t seed = first; seed < first + (chosen != nullptr ? 1 : kSeedsPerTest); ++seed) {
    Simulation simulation(seed);
    ASSERT_EQ(simulation.Run(), "") << "seed " << seed;
    num_losses += simulation.num_losses();
    num_stale += simulation.num_stale();
    num_link_losses += simulation.num_link_losses();
    num_degraded += simulation.was_degraded();
  }
  if (chosen != nullptr) return;
  // Else it would have tested nothing.
  EXPECT_GT(num_losses, kSeedsPerTest);
  EXPECT_GT(num_stale, kSeedsPerTest);
  EXPECT_GT(num_link_losses, kSeedsPerTest / 2);
  EXPECT_GT(num_degraded, kSeedsPerTest / 10);
}

INSTANTIATE_TEST_SUITE_P(Seeds, ClusterSimulationTest, testing::Range(0, 8));

}  // namespace
}  // namespace switchyard::coordinator
