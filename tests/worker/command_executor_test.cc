#include "worker/command_executor.h"

#include <condition_variable>
#include <cstdint>
#include <functional>
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
#include "worker/engine_harness.h"

namespace switchyard::worker {
namespace {

using ::testing::HasSubstr;

// What a session got from the executor.
class Inbox {
 public:
  CommandExecutor::Send send() {
    return [this](v1::WorkerSessionRequest message) {
      std::lock_guard lock(mutex_);
      messages_.push_back(std::move(message));
      changed_.notify_all();
    };
  }
  // The first message for which `wanted` holds.
  v1::WorkerSessionRequest WaitFor(
      const std::function<bool(const v1::WorkerSessionRequest&)>& wanted) {
    std::unique_lock lock(mutex_);
    const v1::WorkerSessionRequest* found = nullptr;
    changed_.wait(lock, [&] {
      for (const auto& message : messages_) {
        if (wanted(message)) found = &message;
      }
      return found != nullptr;
    });
    return *found;
  }
  v1::WorkerSessionRequest WaitForReady() {
    return WaitFor([](const auto& m) { return m.has_shard_ready(); });
  }
  v1::WorkerSessionRequest WaitForFault() {
    return WaitFor([](const auto& m) { return m.has_fault(); });
  }
  void WaitForLast(uint64_t plan) {
    WaitFor([&](const auto& m) {
      return m.has_step_result() && m.step_result().plan() == plan &&
             m.step_result().last_of_plan();
    });
  }
  std::vector<v1::WorkerSessionRequest> messages() {
    std::lock_guard lock(mutex_);
    return messages_;
  }
  std::vector<uint32_t> tokens() {
    std::vector<uint32_t> out;
    for (const auto& message : messages()) {
      for (const auto& slot : message.step_result().slots()) {
        out.insert(out.end(), slot.token_ids().begin(), slot.token_ids().end());
      }
    }
    return out;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::WorkerSessionRequest> messages_;
};

std::string DigestOf(const std::string& path) {
  auto file = model::GgufFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  return model::ModelDigest(*file).value();
}

class CommandExecutorTest : public testing::Test {
 protected:
  CommandExecutorTest() : tokens_(ReadTokens(FixturePath("base.tokens.txt"))) {
    InitLogging({.threshold = LogLevel::kOff});
    Make("");
  }

  void Make(const std::string& own_path) {
    CommandExecutorOptions options;
    options.make_backend = [this](const v1::Configure&) {
      ++num_loads_;
      return absl::StatusOr<std::unique_ptr<kernels::Backend>>(MakeBackend(kReference));
    };
    options.progress_seconds = 0;
    auto executor = CommandExecutor::Create(own_path, options);
    ASSERT_TRUE(executor.ok()) << executor.status();
    executor_ = *std::move(executor);
  }

  v1::WorkerSessionResponse Command(uint64_t epoch) {
    v1::WorkerSessionResponse command;
    command.set_command_id(++command_id_);
    command.set_epoch(epoch);
    return command;
  }
  void Configure(uint64_t epoch, const std::string& model = "base", uint64_t max_context = 192) {
    v1::WorkerSessionResponse command = Command(epoch);
    v1::Configure& configure = *command.mutable_configure();
    configure.set_model_path(FixtureModel(model));
    configure.set_model_digest(DigestOf(FixtureModel("base")));
    configure.set_kv_type("f32");
    configure.mutable_sizes()->set_num_slots(2);
    configure.mutable_sizes()->set_num_pages(6);
    configure.mutable_sizes()->set_max_context(max_context);
    configure.mutable_sizes()->set_max_step_rows(64);
    executor_->Execute(std::move(command));
  }
  void BeginEpoch(uint64_t epoch) {
    v1::WorkerSessionResponse command = Command(epoch);
    v1::WorkerSizes& sizes = *command.mutable_begin_epoch()->mutable_sizes();
    sizes.set_num_slots(2);
    sizes.set_num_pages(6);
    sizes.set_max_context(192);
    sizes.set_max_step_rows(64);
    executor_->Execute(std::move(command));
  }
  // 20 tokens of prompt in slot 0, then decode.
  void Plan(uint64_t epoch, uint64_t number, uint32_t run_ahead) {
    v1::WorkerSessionResponse command = Command(epoch);
    v1::StepPlan& plan = *command.mutable_step_plan();
    plan.set_epoch(epoch);
    plan.set_plan(number);
    plan.set_run_ahead(run_ahead);
    plan.add_starts()->set_incarnation(number);
    plan.mutable_starts(0)->set_max_new_tokens(100);
    for (uint32_t page = 0; page < 3; ++page) {
      if (page == 0) plan.add_page_tables();
      plan.mutable_page_tables(0)->add_pages(page);
    }
    v1::PrefillChunk& chunk = *plan.add_prefill();
    chunk.set_incarnation(number);
    for (size_t i = 0; i < 20; ++i) chunk.add_token_ids(static_cast<uint32_t>(tokens_[i]));
    chunk.set_sample(true);
    plan.add_decode()->set_incarnation(number);
    executor_->Execute(std::move(command));
  }

  std::vector<int32_t> tokens_;
  uint64_t command_id_ = 0;
  int num_loads_ = 0;
  std::unique_ptr<CommandExecutor> executor_;
};

TEST_F(CommandExecutorTest, LoadsWithProgressAndRunsPlans) {
  Inbox inbox;
  executor_->BeginSession(inbox.send());
  EXPECT_EQ(executor_->status().state, v1::WORKER_STATE_REGISTERING);
  Configure(5);
  const v1::WorkerSessionRequest ready = inbox.WaitForReady();
  EXPECT_EQ(ready.epoch(), 5u);
  EXPECT_EQ(ready.acknowledged_command_id(), 1u);
  EXPECT_GT(ready.shard_ready().weight_bytes(), 0u);
  uint64_t done = 0;
  for (const auto& message : inbox.messages()) {
    if (!message.has_shard_progress()) continue;
    EXPECT_GE(message.shard_progress().done_bytes(), done);
    done = message.shard_progress().done_bytes();
  }
  EXPECT_EQ(done, ready.shard_ready().file_bytes());
  EXPECT_EQ(executor_->status().state, v1::WORKER_STATE_READY);
  Plan(5, 1, 4);
  inbox.WaitForLast(1);
  EXPECT_EQ(inbox.tokens().size(), 4u);
  EXPECT_EQ(inbox.messages().back().epoch(), 5u);
  EXPECT_EQ(executor_->status().last_step, 3u);
  EXPECT_EQ(executor_->Telemetry().num_steps(), 4u);
  EXPECT_EQ(executor_->Telemetry().num_tokens(), 4u);
}

TEST_F(CommandExecutorTest, NextSessionFindsTheWeightsAndNoState) {
  Inbox first, second;
  executor_->BeginSession(first.send());
  Configure(5);
  first.WaitForReady();
  Plan(5, 1, 4);
  first.WaitForLast(1);
  executor_->EndSession();
  EXPECT_EQ(executor_->status().state, v1::WORKER_STATE_REGISTERING);
  // A coordinator that was started anew counts from the beginning, and may want other sizes.
  executor_->BeginSession(second.send());
  Configure(2, "base", 128);
  EXPECT_EQ(second.WaitForReady().epoch(), 2u);
  Configure(2);
  Plan(2, 1, 4);
  second.WaitForLast(1);
  EXPECT_EQ(second.tokens(), first.tokens());
  EXPECT_EQ(num_loads_, 1);
}

TEST_F(CommandExecutorTest, EndOfASessionEndsItsPlans) {
  Inbox first, second;
  executor_->BeginSession(first.send());
  Configure(5);
  first.WaitForReady();
  Plan(5, 1, 100);
  first.WaitFor([](const auto& m) { return m.has_step_result(); });
  executor_->EndSession();
  const size_t num_messages = first.messages().size();
  executor_->BeginSession(second.send());
  Configure(6);
  second.WaitForReady();
  for (const auto& message : second.messages()) EXPECT_FALSE(message.has_step_result());
  EXPECT_EQ(first.messages().size(), num_messages);
  EXPECT_EQ(executor_->status().num_waiting_plans, 0u);
}

TEST_F(CommandExecutorTest, NewEpochDropsWhatIsOfTheOld) {
  Inbox inbox;
  executor_->BeginSession(inbox.send());
  Configure(5);
  inbox.WaitForReady();
  Plan(5, 1, 100);
  BeginEpoch(6);
  Plan(5, 2, 1);  // on its way when the epoch began
  Plan(6, 1, 2);
  const auto entered = inbox.WaitFor([](const auto& m) { return m.has_epoch_entered(); });
  EXPECT_EQ(entered.epoch(), 6u);
  inbox.WaitFor([](const auto& m) {
    return m.epoch() == 6 && m.has_step_result() && m.step_result().last_of_plan();
  });
  // After the answer nothing of the old epoch comes.
  bool has_entered = false;
  for (const auto& message : inbox.messages()) {
    has_entered = has_entered || message.has_epoch_entered();
    if (!message.has_step_result()) continue;
    EXPECT_EQ(message.epoch(), has_entered ? 6u : 5u);
  }
  EXPECT_GE(executor_->status().num_dropped_plans, 1u);
}

TEST_F(CommandExecutorTest, InvalidPlanIsAFaultAndTheWeightsStay) {
  Inbox first, second;
  executor_->BeginSession(first.send());
  Configure(5);
  first.WaitForReady();
  v1::WorkerSessionResponse command = Command(5);
  command.mutable_step_plan()->set_plan(1);
  command.mutable_step_plan()->set_epoch(5);
  executor_->Execute(command);  // runs no step
  const v1::Fault fault = first.WaitForFault().fault();
  EXPECT_EQ(fault.code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(fault.message(), HasSubstr("run_ahead"));
  EXPECT_TRUE(executor_->failure().ok());
  executor_->EndSession();
  executor_->BeginSession(second.send());
  Configure(6);
  second.WaitForReady();
  EXPECT_EQ(num_loads_, 1);
}

TEST_F(CommandExecutorTest, PlanBeforeALoadIsAFault) {
  Inbox inbox;
  executor_->BeginSession(inbox.send());
  Plan(5, 1, 1);
  EXPECT_THAT(inbox.WaitForFault().fault().message(), HasSubstr("before anything was loaded"));
}

TEST_F(CommandExecutorTest, AnotherModelAtThePathIsAFailureForGood) {
  Inbox inbox;
  executor_->BeginSession(inbox.send());
  Configure(5, "mixed");
  EXPECT_THAT(inbox.WaitForFault().fault().message(), HasSubstr("model file is another one"));
  EXPECT_EQ(executor_->failure().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CommandExecutorTest, OwnFileIsTakenWhateverThePath) {
  Make(FixtureModel("base"));
  EXPECT_EQ(executor_->own_digest(), DigestOf(FixtureModel("base")));
  Inbox inbox;
  executor_->BeginSession(inbox.send());
  Configure(5, "mixed");  // only the path is another
  inbox.WaitForReady();
}

TEST_F(CommandExecutorTest, ExpertsAreInHostMemoryOnceLoaded) {
  EXPECT_EQ(executor_->Residency().status().code(), absl::StatusCode::kFailedPrecondition);
  Inbox inbox;
  executor_->BeginSession(inbox.send());
  Configure(5);
  inbox.WaitForReady();
  const auto residency = executor_->Residency();
  ASSERT_TRUE(residency.ok());
  EXPECT_EQ(residency->states().size(), size_t{residency->num_layers()} * residency->num_experts());
  EXPECT_EQ(residency->states().find_first_not_of(static_cast<char>(v1::RESIDENCY_STATE_HOST)),
            std::string::npos);
  EXPECT_GT(residency->host_bytes(), 0u);
  EXPECT_EQ(residency->device_bytes(), 0u);
  EXPECT_EQ(residency->budget_bytes(), residency->host_bytes());
  EXPECT_EQ(static_cast<size_t>(residency->uses_size()), residency->states().size());
}

TEST_F(CommandExecutorTest, CanBeDestroyedWhileAPlanRuns) {
  Inbox inbox;
  executor_->BeginSession(inbox.send());
  Configure(5);
  inbox.WaitForReady();
  Plan(5, 1, 100);
  inbox.WaitFor([](const auto& m) { return m.has_step_result(); });
  executor_.reset();
}

}  // namespace
}  // namespace switchyard::worker
