// Several command executors that form a group, with the test as their coordinator.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "base/status.h"
#include "model/model_digest.h"
#include "placement/placement.h"
#include "worker/command_executor.h"
#include "worker/engine_harness.h"

namespace switchyard::worker {
namespace {

using ::testing::HasSubstr;

struct Received {
  int rank = 0;
  v1::WorkerSessionRequest message;
};

class ExecutorGroupTest : public ::testing::Test {
 protected:
  ExecutorGroupTest() : tokens_(ReadTokens(FixturePath("shards.tokens.txt"))) {
    InitLogging({.threshold = LogLevel::kOff});
    auto file = model::GgufFile::Open(FixtureModel("shards"));
    EXPECT_TRUE(file.ok());
    digest_ = model::ModelDigest(*file).value();
    spec_ = std::make_unique<model::ModelSpec>(model::LoadModelSpec(*file).value());
    file_ = std::make_unique<model::GgufFile>(*std::move(file));
  }

  void Make(int num_ranks) {
    executors_.clear();
    received_.clear();
    exchanges_.clear();
    for (int rank = 0; rank < num_ranks; ++rank) {
      CommandExecutorOptions options;
      options.make_backend = [this](const v1::Configure&) {
        ++num_loads_;
        return absl::StatusOr<std::unique_ptr<kernels::Backend>>(MakeBackend(kReference));
      };
      auto executor = CommandExecutor::Create("", options);
      ASSERT_TRUE(executor.ok());
      executors_.push_back(*std::move(executor));
      BeginSession(rank);
    }
  }
  void BeginSession(int rank) {
    executors_[static_cast<size_t>(rank)]->BeginSession(
        [this, rank](v1::WorkerSessionRequest message) {
          std::lock_guard lock(mutex_);
          received_.push_back({rank, std::move(message)});
          changed_.notify_all();
        });
  }

  v1::WorkerSessionResponse Command(uint64_t epoch) {
    v1::WorkerSessionResponse command;
    command.set_command_id(++command_id_);
    command.set_epoch(epoch);
    return command;
  }
  void Execute(int rank, v1::WorkerSessionResponse command) {
    executors_[static_cast<size_t>(rank)]->Execute(std::move(command));
  }
  static void SetSizes(v1::WorkerSizes& sizes) {
    sizes.set_num_slots(2);
    sizes.set_num_pages(6);
    sizes.set_max_context(192);
    sizes.set_max_step_rows(64);
  }
  void Configure(int rank, uint64_t epoch, placement::v1::Mode mode, int world_size) {
    v1::WorkerSessionResponse command = Command(epoch);
    v1::Configure& configure = *command.mutable_configure();
    configure.set_model_path(paths_.contains(rank) ? paths_[rank] : FixtureModel("shards"));
    if (paths_.contains(rank)) configure.set_host_expert_bytes(0);
    configure.set_model_digest(digest_);
    configure.set_kv_type("f32");
    SetSizes(*configure.mutable_sizes());
    placement::PlacementWish wish;
    wish.mode = mode;
    wish.world_size = world_size;
    *configure.mutable_placement() = placement::MakePlacement(*spec_, wish).value();
    configure.set_rank(static_cast<uint32_t>(rank));
    Execute(rank, std::move(command));
  }
  void BeginEpoch(int rank, uint64_t epoch) {
    v1::WorkerSessionResponse command = Command(epoch);
    SetSizes(*command.mutable_begin_epoch()->mutable_sizes());
    Execute(rank, std::move(command));
  }
  void FormGroup(int rank, uint64_t epoch, double seconds = 60) {
    v1::WorkerSessionResponse command = Command(epoch);
    v1::FormGroup& form = *command.mutable_form_group();
    form.set_group_id("executor-group-test");
    form.set_backend("shm");
    form.mutable_timeout()->set_nanos(static_cast<int32_t>(seconds < 1 ? seconds * 1e9 : 0));
    form.mutable_timeout()->set_seconds(static_cast<int64_t>(seconds));
    form.mutable_operation_timeout()->set_seconds(60);
    Execute(rank, std::move(command));
  }
  // 20 tokens of prompt in slot 0, then decode.
  void Plan(int rank, uint64_t epoch, uint64_t number, uint32_t run_ahead) {
    v1::WorkerSessionResponse command = Command(epoch);
    v1::StepPlan& plan = *command.mutable_step_plan();
    plan.set_epoch(epoch);
    plan.set_plan(number);
    plan.set_run_ahead(run_ahead);
    plan.add_starts()->set_incarnation(number);
    plan.mutable_starts(0)->set_max_new_tokens(100);
    plan.add_page_tables();
    for (uint32_t page = 0; page < 3; ++page) plan.mutable_page_tables(0)->add_pages(page);
    v1::PrefillChunk& chunk = *plan.add_prefill();
    chunk.set_incarnation(number);
    for (size_t i = 0; i < 20; ++i) chunk.add_token_ids(static_cast<uint32_t>(tokens_[i]));
    chunk.set_sample(true);
    plan.add_decode()->set_incarnation(number);
    Execute(rank, std::move(command));
  }

  // Answers exchanges of `world_size` ranks, and returns the next message for which `wanted` holds.
  Received WaitFor(const std::function<bool(const Received&)>& wanted) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !received_.empty(); });
      const Received next = std::move(received_.front());
      received_.pop_front();
      if (next.message.has_rendezvous_entry()) {
        lock.unlock();
        Answer(next);
        lock.lock();
      } else if (wanted(next)) {
        return next;
      }
    }
  }
  void Answer(const Received& received) {
    const v1::RendezvousEntry& entry = received.message.rendezvous_entry();
    const uint64_t epoch = received.message.epoch();
    auto& entries = exchanges_[{epoch, entry.key()}];
    entries[received.rank] = entry.data();
    if (entries.size() < executors_.size()) return;
    v1::WorkerSessionResponse command = Command(epoch);
    command.mutable_rendezvous_data()->set_key(entry.key());
    for (const auto& [rank, data] : entries) command.mutable_rendezvous_data()->add_entries(data);
    for (int rank = 0; rank < static_cast<int>(executors_.size()); ++rank) Execute(rank, command);
  }
  template <typename Has>
  void WaitForAll(Has has) {
    for (size_t i = 0; i < executors_.size(); ++i) {
      WaitFor([&](const Received& r) { return has(r.message); });
    }
  }
  std::vector<uint32_t> TokensOfPlan(uint64_t plan) {
    std::vector<uint32_t> tokens;
    WaitFor([&](const Received& r) {
      if (!r.message.has_step_result() || r.message.step_result().plan() != plan) return false;
      for (const auto& slot : r.message.step_result().slots()) {
        tokens.insert(tokens.end(), slot.token_ids().begin(), slot.token_ids().end());
      }
      return r.message.step_result().last_of_plan();
    });
    return tokens;
  }

  // Brings all into `epoch`, linked up.
  void Serve(uint64_t epoch, placement::v1::Mode mode) {
    const int world_size = static_cast<int>(executors_.size());
    for (int rank = 0; rank < world_size; ++rank) Configure(rank, epoch, mode, world_size);
    WaitForAll([](const auto& m) { return m.has_shard_ready(); });
    if (world_size == 1) return;
    for (int rank = 0; rank < world_size; ++rank) FormGroup(rank, epoch);
    WaitForAll([](const auto& m) { return m.has_group_formed(); });
  }
  std::vector<uint32_t> TokensAlone() {
    Make(1);
    Serve(2, placement::v1::MODE_SINGLE);
    Plan(0, 2, 1, 6);
    return TokensOfPlan(1);
  }

  std::vector<int32_t> tokens_;
  std::map<int, std::string> paths_;  // ranks with a file of their own, from which experts are read
  std::string digest_;
  std::unique_ptr<model::GgufFile> file_;
  std::unique_ptr<model::ModelSpec> spec_;
  std::atomic<int> num_loads_{0};
  uint64_t command_id_ = 0;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Received> received_;
  // Of the test's thread.
  std::map<std::pair<uint64_t, std::string>, std::map<int, std::string>> exchanges_;
  std::vector<std::unique_ptr<CommandExecutor>> executors_;  // first to go
};

TEST_F(ExecutorGroupTest, ComputesTheTokensOfOneWorker) {
  const std::vector<uint32_t> alone = TokensAlone();
  ASSERT_EQ(alone.size(), 6u);
  for (const auto mode :
       {placement::v1::MODE_LAYER_SPLIT, placement::v1::MODE_TENSOR_EXPERT_PARALLEL}) {
    Make(2);
    Serve(3, mode);
    EXPECT_EQ(executors_[0]->status().state, v1::WORKER_STATE_READY);
    EXPECT_EQ(executors_[1]->status().state, v1::WORKER_STATE_READY);
    Plan(mode == placement::v1::MODE_LAYER_SPLIT ? 1 : 0, 3, 1, 6);
    EXPECT_EQ(TokensOfPlan(1), alone);
  }
}

TEST_F(ExecutorGroupTest, NextEpochKeepsTheWeightsAndLinksUpAnew) {
  const std::vector<uint32_t> alone = TokensAlone();
  Make(2);
  num_loads_ = 0;
  Serve(3, placement::v1::MODE_TENSOR_EXPERT_PARALLEL);
  Plan(0, 3, 1, 100);
  WaitFor([](const Received& r) { return r.message.has_step_result(); });
  for (const int rank : {0, 1}) BeginEpoch(rank, 4);
  WaitForAll([](const auto& m) { return m.has_epoch_entered(); });
  for (const int rank : {0, 1}) FormGroup(rank, 4);
  WaitForAll([](const auto& m) { return m.has_group_formed(); });
  Plan(0, 4, 1, 6);
  EXPECT_EQ(TokensOfPlan(1), alone);
  EXPECT_EQ(num_loads_, 2);
}

TEST_F(ExecutorGroupTest, AnotherShareIsLoadedAndTheSameIsNot) {
  Make(2);
  Serve(3, placement::v1::MODE_TENSOR_EXPERT_PARALLEL);
  num_loads_ = 0;
  Serve(4, placement::v1::MODE_TENSOR_EXPERT_PARALLEL);
  EXPECT_EQ(num_loads_, 0);
  Serve(5, placement::v1::MODE_LAYER_SPLIT);
  EXPECT_EQ(num_loads_, 2);
}

TEST_F(ExecutorGroupTest, RankThatDoesNotComeIsALossOfTheGroupAndNoFault) {
  Make(2);
  Configure(0, 3, placement::v1::MODE_LAYER_SPLIT, 2);
  WaitFor([](const Received& r) { return r.message.has_shard_ready(); });
  FormGroup(0, 3, /*seconds=*/0.05);
  const Received lost = WaitFor([](const Received& r) { return r.message.has_group_lost(); });
  EXPECT_EQ(lost.message.group_lost().code(),
            static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(executors_[0]->failure().ok());
  BeginEpoch(0, 4);
  EXPECT_EQ(
      WaitFor([](const Received& r) { return r.message.has_epoch_entered(); }).message.epoch(), 4u);
}

TEST_F(ExecutorGroupTest, NewerEpochEndsTheFormingAtOnce) {
  Make(2);
  Configure(0, 3, placement::v1::MODE_LAYER_SPLIT, 2);
  WaitFor([](const Received& r) { return r.message.has_shard_ready(); });
  FormGroup(0, 3, /*seconds=*/3600);
  BeginEpoch(0, 4);
  const Received entered = WaitFor([](const Received& r) {
    EXPECT_FALSE(r.message.has_group_lost());  // nobody waits for it
    return r.message.has_epoch_entered();
  });
  EXPECT_EQ(entered.message.epoch(), 4u);
}

TEST_F(ExecutorGroupTest, EndOfTheSessionEndsTheFormingAtOnce) {
  Make(2);
  Configure(0, 3, placement::v1::MODE_LAYER_SPLIT, 2);
  WaitFor([](const Received& r) { return r.message.has_shard_ready(); });
  FormGroup(0, 3, /*seconds=*/3600);
  executors_[0]->EndSession();
  BeginSession(0);
  Configure(0, 5, placement::v1::MODE_LAYER_SPLIT, 2);
  WaitFor([](const Received& r) { return r.message.has_shard_ready() && r.message.epoch() == 5; });
  EXPECT_EQ(num_loads_, 1);
}

TEST_F(ExecutorGroupTest, ExecutorThatFormsCanBeDestroyed) {
  Make(2);
  Configure(0, 3, placement::v1::MODE_LAYER_SPLIT, 2);
  WaitFor([](const Received& r) { return r.message.has_shard_ready(); });
  FormGroup(0, 3, /*seconds=*/3600);
  executors_.clear();
}

TEST_F(ExecutorGroupTest, SurvivorOfAGroupIsWellAndSaysThatItIsLost) {
  Make(2);
  Serve(3, placement::v1::MODE_TENSOR_EXPERT_PARALLEL);
  Plan(0, 3, 1, 100);
  WaitFor([](const Received& r) { return r.message.has_step_result(); });
  executors_[1]->EndSession();  // it leaves the epoch
  const Received lost = WaitFor([](const Received& r) { return r.message.has_group_lost(); });
  EXPECT_EQ(lost.rank, 0);
  EXPECT_EQ(lost.message.epoch(), 3u);
  EXPECT_TRUE(executors_[0]->failure().ok());
  EXPECT_FALSE(executors_[0]->status().has_plans);
  BeginEpoch(0, 4);
  WaitFor([](const Received& r) { return r.message.has_epoch_entered(); });
}

TEST_F(ExecutorGroupTest, RankThatCannotComputeSaysWhyAndTheLeadIsWell) {
  // On a rank that does not lead: its experts stay in a file that is written to after the load.
  paths_[1] = testing::TempDir() + "/executor_group_written.gguf";
  std::filesystem::copy_file(FixtureModel("shards"), paths_[1],
                             std::filesystem::copy_options::overwrite_existing);
  Make(2);
  Serve(3, placement::v1::MODE_TENSOR_EXPERT_PARALLEL);
  std::ofstream(paths_[1], std::ios::app) << "more";
  Plan(0, 3, 1, 1);
  bool lead_has_lost = false, follower_has_failed = false;
  WaitFor([&](const Received& r) {
    EXPECT_FALSE(r.message.has_step_result());
    lead_has_lost |= r.rank == 0 && r.message.has_group_lost();
    if (r.rank == 1 && r.message.has_fault()) {
      follower_has_failed = true;
      EXPECT_THAT(r.message.fault().message(), HasSubstr("step failed"));
    }
    return lead_has_lost && follower_has_failed;
  });
  EXPECT_TRUE(executors_[0]->failure().ok());
  EXPECT_FALSE(executors_[1]->failure().ok());
}

TEST_F(ExecutorGroupTest, GroupOfOneOrOfAnotherEpochIsAFault) {
  Make(1);
  Serve(3, placement::v1::MODE_SINGLE);
  FormGroup(0, 3);
  const Received fault = WaitFor([](const Received& r) { return r.message.has_fault(); });
  EXPECT_THAT(fault.message.fault().message(), HasSubstr("no other ranks"));
  Make(2);
  Configure(0, 3, placement::v1::MODE_LAYER_SPLIT, 2);
  FormGroup(0, 4);
  const Received early = WaitFor([](const Received& r) { return r.message.has_fault(); });
  EXPECT_THAT(early.message.fault().message(), HasSubstr("was not entered"));
}

}  // namespace
}  // namespace switchyard::worker
