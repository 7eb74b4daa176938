// Losses of the worker, failures of one slot, time limits, and what a generation is told of them.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/error_info.h"
#include "engine_harness.h"

namespace switchyard::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Harness = EngineHarness;

TEST(EngineLossTest, RunningGenerationsGoOnBehindTheirLastToken) {
  auto options = Harness::WorkerOptions(2, 64, 4);
  options.losses = {{20, true}, {40, false}};
  Harness h(options, {});
  const auto a = Harness::Prompt(100, 1), b = Harness::Prompt(70, 2), c = Harness::Prompt(30, 3);
  ASSERT_TRUE(h.Start(Harness::Request(a, 60), 0).ok());
  ASSERT_TRUE(h.Start(Harness::Request(b, 60), 1).ok());
  ASSERT_TRUE(h.Start(Harness::Request(c, 60), 2).ok());
  int key = 0;
  for (const auto& prompt : {a, b, c}) {
    const Collected got = h.Wait(key++);
    EXPECT_EQ(got.token_ids, h.Expected(prompt, 60));
    EXPECT_EQ(got.text, h.Text(got.token_ids));
    EXPECT_EQ(got.num_started, 1);
    EXPECT_EQ(got.last.reason, FinishReason::kMaxTokens);
    EXPECT_EQ(got.last.usage.completion_tokens, 60);
    EXPECT_EQ(got.last.usage.prompt_tokens, static_cast<int>(prompt.size()));
    // Never back: nothing is said of what is computed again.
    EXPECT_TRUE(std::is_sorted(got.progress.begin(), got.progress.end()));
  }
  EXPECT_EQ(h.Wait(0).last.num_replays, 2);
  EXPECT_TRUE(h.Wait(0).last.replayed);
  EXPECT_EQ(h.Wait(2).last.num_replays, 0);  // it had waited for a slot
  EXPECT_FALSE(h.Wait(2).last.replayed);
  const EngineStats stats = h.engine().stats();
  EXPECT_EQ(stats.num_losses, 2);
  EXPECT_EQ(stats.num_replays, 4);
  EXPECT_EQ(stats.prompt_tokens, 200);
  EXPECT_EQ(stats.completion_tokens, 180);
  EXPECT_GT(stats.replayed_tokens, 2 * 170);
  EXPECT_EQ(h.engine().CheckInvariants(), absl::OkStatus());
  EXPECT_THAT(h.worker().violations(), IsEmpty());
}

TEST(EngineLossTest, StatesFollowTheWorker) {
  auto options = Harness::WorkerOptions(1, 64, 4);
  options.ready_at_start = false;
  options.returns_by_itself = false;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<EngineState> states;
  EngineOptions engine_options;
  engine_options.on_state_change = [&](EngineState state) {
    std::lock_guard lock(mutex);
    states.push_back(state);
    changed.notify_all();
  };
  const auto wait_for = [&](size_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return states.size() >= count; });
  };
  Harness h(options, engine_options);
  EXPECT_EQ(h.engine().state(), EngineState::kLoading);
  const auto prompt = Harness::Prompt(100, 1);
  ASSERT_TRUE(h.Start(Harness::Request(prompt, 200), 0).ok());
  EXPECT_EQ(h.engine().CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(h.engine().stats().num_waiting, 1);
  h.worker().Return();
  h.WaitForTokens(0, 3);
  EXPECT_EQ(h.engine().state(), EngineState::kServing);

  h.worker().Lose();
  wait_for(2);
  EXPECT_EQ(h.engine().state(), EngineState::kRecovering);
  // Whatever was under way has left nothing behind.
  EXPECT_EQ(h.engine().CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(h.engine().stats().num_free_pages, 64);
  EXPECT_EQ(h.engine().stats().num_checkpoints, 0);
  EXPECT_EQ(h.engine().stats().num_running, 0);
  ASSERT_TRUE(h.Start(Harness::Request(prompt, 5), 1).ok());
  h.worker().Return();
  EXPECT_EQ(h.Wait(0).token_ids, h.Expected(prompt, 200));
  EXPECT_EQ(h.Wait(1).token_ids, h.Expected(prompt, 5));
  EXPECT_THAT(states,
              ElementsAre(EngineState::kServing, EngineState::kRecovering, EngineState::kServing));
  EXPECT_THAT(h.worker().violations(), IsEmpty());
}

class EngineLeavingTest : public ::testing::Test {
 protected:
  // One generation runs and is held in its eighth step; the worker has said that it leaves; another
  // generation waits though a slot is free.
  EngineLeavingTest() {
    auto options = Harness::WorkerOptions(2, 64, 4);
    options.hold_at_step = 8;
    options.returns_by_itself = false;
    EngineOptions engine;
    engine.on_state_change = [this](EngineState state) {
      std::lock_guard lock(mutex_);
      state_ = state;
      changed_.notify_all();
    };
    harness_ = std::make_unique<Harness>(options, engine);
    EXPECT_TRUE(harness_->Start(Harness::Request(running_, 60), 0).ok());
    harness_->WaitForTokens(0, 4);
    harness_->worker().Leave();
    WaitForState(EngineState::kRecovering);
    EXPECT_TRUE(harness_->Start(Harness::Request(waiting_, 30), 1).ok());
    EXPECT_EQ(harness_->engine().CheckInvariants(), absl::OkStatus());
    EXPECT_EQ(harness_->engine().stats().num_running, 1);
    EXPECT_EQ(harness_->engine().stats().num_waiting, 1);
  }
  ~EngineLeavingTest() override { harness_.reset(); }

  void WaitForState(EngineState state) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return state_ == state; });
  }

  const std::vector<int32_t> running_ = Harness::Prompt(100, 1);
  const std::vector<int32_t> waiting_ = Harness::Prompt(70, 2);
  std::mutex mutex_;
  std::condition_variable changed_;
  EngineState state_ = EngineState::kLoading;
  std::unique_ptr<Harness> harness_;
};

TEST_F(EngineLeavingTest, WhatRunsGoesOnAndTheRestWaits) {
  Harness& h = *harness_;
  h.worker().Release();
  const Collected got = h.Wait(0);
  EXPECT_EQ(got.token_ids, h.Expected(running_, 60));
  EXPECT_EQ(got.last.num_replays, 0);
  EXPECT_EQ(h.engine().CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(h.engine().stats().num_waiting, 1);
  EXPECT_EQ(h.engine().stats().prompt_tokens, 100);
  h.worker().Lose();
  h.worker().Return();
  EXPECT_EQ(h.Wait(1).token_ids, h.Expected(waiting_, 30));
  EXPECT_EQ(h.Wait(1).last.num_replays, 0);
  EXPECT_EQ(h.engine().state(), EngineState::kServing);
  EXPECT_THAT(h.worker().violations(), IsEmpty());
}

TEST_F(EngineLeavingTest, WhatItDoesNotFinishIsReplayed) {
  Harness& h = *harness_;
  h.worker().Lose();  // its patience has ended
  h.worker().Release();
  h.worker().Return();
  EXPECT_EQ(h.Wait(0).token_ids, h.Expected(running_, 60));
  EXPECT_EQ(h.Wait(0).last.num_replays, 1);
  EXPECT_EQ(h.Wait(1).token_ids, h.Expected(waiting_, 30));
  EXPECT_EQ(h.engine().CheckInvariants(), absl::OkStatus());
  EXPECT_THAT(h.worker().violations(), IsEmpty());
}

TEST_F(EngineLeavingTest, CancelActsOnBoth) {
  Harness& h = *harness_;
  h.engine().Cancel(1);
  h.engine().Cancel(2);
  EXPECT_EQ(h.Wait(0).last.reason, FinishReason::kCancelled);
  EXPECT_EQ(h.Wait(1).last.reason, FinishReason::kCancelled);
  h.worker().Release();
  EXPECT_EQ(h.engine().CheckInvariants(), absl::OkStatus());
}

TEST(EngineLossTest, CancelAndTimeLimitActWhileTheWorkerIsAway) {
  auto options = Harness::WorkerOptions(2, 64, 4);
  options.returns_by_itself = false;
  options.losses = {{8, true}};
  Harness h(options, {});
  GenerationRequest limited = Harness::Request(Harness::Prompt(10, 1), 500);
  limited.time_limit_seconds = 0.05;
  const auto cancelled = h.Start(Harness::Request(Harness::Prompt(10, 2), 500), 0);
  ASSERT_TRUE(cancelled.ok());
  ASSERT_TRUE(h.Start(limited, 1).ok());
  EXPECT_EQ(h.Wait(1).last.reason, FinishReason::kTimeLimit);
  EXPECT_GE(h.Wait(1).last.timings.total_seconds, 0.05);
  h.engine().Cancel(*cancelled);
  EXPECT_EQ(h.Wait(0).last.reason, FinishReason::kCancelled);
  EXPECT_EQ(h.engine().CheckInvariants(), absl::OkStatus());
}

TEST(EngineLossTest, GivesUpAfterMaxReplays) {
  auto options = Harness::WorkerOptions(1, 64, 4);
  options.losses = {{10, true}, {20, true}, {30, true}};
  Harness h(options, {.max_replays = 2, .retry_after_seconds = 7});
  const auto prompt = Harness::Prompt(10, 1);
  const Collected c = h.Run(Harness::Request(prompt, 500), 0);
  EXPECT_EQ(c.last.reason, FinishReason::kFailed);
  EXPECT_EQ(c.last.error.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(c.last.error), kWorkerLost);
  EXPECT_EQ(RetryAfterOf(c.last.error), 7);
  EXPECT_EQ(c.last.num_replays, 2);
  const auto expected = h.Expected(prompt, 500);
  ASSERT_LE(c.token_ids.size(), expected.size());
  EXPECT_TRUE(std::equal(c.token_ids.begin(), c.token_ids.end(), expected.begin()));
  EXPECT_EQ(h.Run(Harness::Request(prompt, 20), 1).token_ids, h.Expected(prompt, 20));
}

TEST(EngineLossTest, FailsAtOnceWhereThatIsAskedFor) {
  auto options = Harness::WorkerOptions(1, 64, 4);
  options.losses = {{10, true}};
  Harness h(options, {.on_worker_loss = OnWorkerLoss::kFail});
  const auto waiting = Harness::Prompt(10, 2);
  ASSERT_TRUE(h.Start(Harness::Request(Harness::Prompt(10, 1), 500), 0).ok());
  ASSERT_TRUE(h.Start(Harness::Request(waiting, 50), 1).ok());
  EXPECT_EQ(h.Wait(0).last.reason, FinishReason::kFailed);
  EXPECT_EQ(ReasonOf(h.Wait(0).last.error), kWorkerLost);
  EXPECT_EQ(h.Wait(1).token_ids, h.Expected(waiting, 50));  // it had nothing to lose
}

TEST(EngineLossTest, ALossForGoodEndsEverything) {
  auto options = Harness::WorkerOptions(1, 64, 4);
  options.fail_at_step = 5;
  Harness h(options, {});
  ASSERT_TRUE(h.Start(Harness::Request(Harness::Prompt(10, 1), 500), 0).ok());
  const Collected c = h.Wait(0);
  EXPECT_EQ(c.last.reason, FinishReason::kFailed);
  EXPECT_EQ(ReasonOf(c.last.error), kWorkerLost);
  EXPECT_THAT(std::string(c.last.error.message()), HasSubstr("made to fail"));
  EXPECT_EQ(h.engine().CheckInvariants(), absl::OkStatus());
  EXPECT_EQ(h.engine().state(), EngineState::kFailed);
  const absl::Status refused = h.Start(Harness::Request(Harness::Prompt(10, 3), 5), 2).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), kWorkerLost);
}

TEST(EngineLossTest, StopStringsHeldHalfWaySurvive) {
  for (int64_t step = 3; step < 20; ++step) {
    auto options = Harness::WorkerOptions(1, 64, 0);
    options.losses = {{step, true}};
    Harness h(options, {});
    const auto prompt = Harness::Prompt(20, 4);
    const std::string text = h.Text(h.Expected(prompt, 40));
    GenerationRequest request = Harness::Request(prompt, 40);
    request.stop = {text.substr(4, 14)};
    const Collected c = h.Run(request, 0);
    EXPECT_EQ(c.text, text.substr(0, 4)) << step;
    EXPECT_EQ(c.last.reason, FinishReason::kStopSequence) << step;
  }
}

TEST(EngineSlotFailureTest, OneSlotFailsAndTheOthersGoOn) {
  auto options = Harness::WorkerOptions(2, 64, 4);
  options.failing_token = 95;  // Prompt() gives tokens below 90
  Harness h(options, {});
  const auto good = Harness::Prompt(50, 1);
  auto bad = Harness::Prompt(50, 2);
  bad[20] = 95;
  ASSERT_TRUE(h.Start(Harness::Request(good, 100), 0).ok());
  ASSERT_TRUE(h.Start(Harness::Request(bad, 100), 1).ok());
  const Collected failed = h.Wait(1);
  EXPECT_EQ(failed.last.reason, FinishReason::kFailed);
  EXPECT_EQ(failed.last.error.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(failed.last.error.message()), HasSubstr("made to fail"));
  EXPECT_THAT(failed.token_ids, IsEmpty());
  EXPECT_EQ(h.Wait(0).token_ids, h.Expected(good, 100));
  EXPECT_EQ(h.engine().state(), EngineState::kServing);
  EXPECT_EQ(h.engine().CheckInvariants(), absl::OkStatus());
}

TEST(EngineTimeLimitTest, EndsRunningAndWaitingGenerations) {
  auto options = Harness::WorkerOptions(1, 64, 4);
  options.hold_at_step = 8;  // no result wakes the engine any more
  Harness h(options, {});
  GenerationRequest running = Harness::Request(Harness::Prompt(10, 1), 500);
  running.time_limit_seconds = 0.1;
  GenerationRequest waiting = running;
  waiting.time_limit_seconds = 0.05;
  ASSERT_TRUE(h.Start(running, 0).ok());
  ASSERT_TRUE(h.Start(waiting, 1).ok());
  EXPECT_EQ(h.Wait(1).last.reason, FinishReason::kTimeLimit);
  EXPECT_EQ(h.Wait(1).num_started, 0);
  EXPECT_EQ(h.Wait(0).last.reason, FinishReason::kTimeLimit);
  EXPECT_GE(h.Wait(0).last.timings.total_seconds, 0.1);
  const EngineStats stats = h.engine().stats();
  EXPECT_EQ(stats.num_finished[static_cast<size_t>(FinishReason::kTimeLimit)], 2);
  h.worker().Release();
}

TEST(EngineMinTokensTest, NoEndTokenBeforeThem) {
  auto options = Harness::WorkerOptions(1, 64, 4);
  options.eos_period = 20;
  Harness h(options, {});
  const auto prompt = Harness::Prompt(10, 3);
  const auto plain = h.Expected(prompt, 500);
  GenerationRequest request = Harness::Request(prompt, 500);
  request.min_tokens = static_cast<int>(plain.size()) + 5;
  const Collected c = h.Run(request, 0);
  EXPECT_GT(static_cast<int>(c.token_ids.size()), request.min_tokens);
  EXPECT_EQ(c.token_ids, h.Expected(prompt, 500, request.min_tokens));
}

TEST(EngineCostsTest, AGenerationIsToldWhatItsStepsCost) {
  Harness h(Harness::WorkerOptions(1, 64, 0), {.run_ahead = 1});
  GenerationRequest request = Harness::Request(Harness::Prompt(300, 1), 10);
  request.return_step_costs = true;
  const Collected c = h.Run(request, 0);
  // Chunks end at 256 and 300: two steps, the second of which gives the first token.
  const StepCosts& costs = c.last.costs;
  EXPECT_EQ(costs.num_steps, 11);
  EXPECT_EQ(costs.seconds, 11 * testing::FakeWorker::kStepSeconds);
  EXPECT_EQ(costs.idle_seconds, 10 * testing::FakeWorker::kIdleSeconds);
  EXPECT_EQ(costs.stages[worker::v1::STAGE_HEAD].weight_bytes,
            11 * static_cast<int64_t>(testing::FakeWorker::kHeadBytes));
  EXPECT_EQ(costs.stages[worker::v1::STAGE_EXPERTS_DEVICE].seconds,
            11 * testing::FakeWorker::kStepSeconds / 2);
  EXPECT_EQ(costs.unattributed_seconds(), costs.seconds / 4);
  int64_t num_steps = 0;
  for (size_t i = 0; i + 1 < c.costs.size(); ++i) {
    EXPECT_LE(c.costs[i].num_steps, 1);
    num_steps += c.costs[i].num_steps;
  }
  EXPECT_EQ(num_steps, 11);
  request.return_step_costs = false;
  const Collected without = h.Run(request, 1);
  EXPECT_EQ(without.costs.front().num_steps + without.costs[1].num_steps, 0);
  EXPECT_EQ(without.last.costs.num_steps, 11);
  EXPECT_EQ(h.engine().stats().costs.num_steps, h.engine().stats().num_steps);
}

TEST(EngineStatsTest, TheSlotTableShowsWhoRuns) {
  auto options = Harness::WorkerOptions(2, 64, 4);
  options.hold_at_step = 6;
  Harness h(options, {});
  const auto id = h.Start(Harness::Request(Harness::Prompt(100, 1), 500), 0);
  ASSERT_TRUE(id.ok());
  h.WaitForTokens(0, 4);
  ASSERT_EQ(h.engine().CheckInvariants(), absl::OkStatus());  // the results are dealt with
  const EngineStats stats = h.engine().stats();
  ASSERT_EQ(stats.slots.size(), 2u);
  EXPECT_EQ(stats.slots[0].generation_id, *id);
  EXPECT_EQ(stats.slots[0].state, SequenceState::kDecode);
  EXPECT_EQ(stats.slots[0].prompt_tokens, 100);
  EXPECT_EQ(stats.slots[0].num_prefilled, 100);
  EXPECT_GE(stats.slots[0].completion_tokens, 3);
  EXPECT_EQ(stats.slots[1].generation_id, 0u);
  EXPECT_EQ(stats.slots[1].slot, 1u);
  EXPECT_EQ(stats.prefix_query_tokens, 100);
  h.engine().Cancel(*id);
  h.Wait(0);
  h.worker().Release();
}

}  // namespace
}  // namespace switchyard::coordinator
