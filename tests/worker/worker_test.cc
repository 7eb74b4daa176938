#include "worker/worker.h"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine_harness.h"

namespace switchyard::worker {
namespace {

// Collects results; a hook runs on the step thread before a result counts as seen.
class Collector {
 public:
  Worker::ResultCallback callback() {
    return [this](const v1::StepResult& result) {
      if (hook) hook(result);
      std::lock_guard lock(mutex_);
      results_.push_back(result);
      changed_.notify_all();
    };
  }

  std::vector<v1::StepResult> WaitFor(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return results_.size() >= count; });
    return results_;
  }

  std::vector<v1::StepResult> WaitForLast(uint64_t plan) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      for (const v1::StepResult& result : results_) {
        if (result.plan() == plan && result.last_of_plan()) return true;
      }
      return false;
    });
    return results_;
  }

  std::function<void(const v1::StepResult&)> hook;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<v1::StepResult> results_;
};

class WorkerTest : public testing::Test {
 protected:
  WorkerTest() : tokens_(ReadTokens(FixturePath("base.tokens.txt"))) {
    absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(FixtureModel("base"));
    EXPECT_TRUE(file.ok()) << file.status();
    file_ = std::make_unique<model::GgufFile>(*std::move(file));
    absl::StatusOr<model::ModelSpec> spec = model::LoadModelSpec(*file_);
    EXPECT_TRUE(spec.ok()) << spec.status();
    spec_ = *std::move(spec);
    absl::StatusOr<std::unique_ptr<Worker>> worker =
        Worker::Create(*file_, spec_, MakeBackend(kReference), TestOptions(192, 2),
                       [this](int64_t done, int64_t total) {
                         progress_.emplace_back(done, total);
                         return absl::OkStatus();
                       });
    EXPECT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
  }

  // Slot 0, `num_tokens` of prompt, then decode.
  v1::StepPlan PromptPlan(uint64_t number, uint32_t run_ahead, size_t num_tokens = 20) {
    v1::StepPlan plan;
    plan.set_plan(number);
    plan.set_epoch(1);
    plan.set_run_ahead(run_ahead);
    v1::SlotStart& start = *plan.add_starts();
    start.set_incarnation(number);
    start.set_max_new_tokens(100);
    for (uint32_t i = 0; i < 3; ++i) {
      if (i == 0) plan.add_page_tables();
      plan.mutable_page_tables(0)->add_pages(i);
    }
    v1::PrefillChunk& chunk = *plan.add_prefill();
    chunk.set_incarnation(number);
    for (size_t i = 0; i < num_tokens; ++i) {
      chunk.add_token_ids(static_cast<uint32_t>(tokens_[i]));
    }
    chunk.set_sample(true);
    plan.add_decode()->set_incarnation(number);
    return plan;
  }

  v1::StepPlan DecodePlan(uint64_t number, uint64_t incarnation, uint32_t run_ahead) {
    v1::StepPlan plan;
    plan.set_plan(number);
    plan.set_epoch(1);
    plan.set_run_ahead(run_ahead);
    plan.add_decode()->set_incarnation(incarnation);
    return plan;
  }

  std::vector<int32_t> tokens_;
  std::unique_ptr<model::GgufFile> file_;
  model::ModelSpec spec_;
  std::vector<std::pair<int64_t, int64_t>> progress_;
  Collector collector_;  // outlives the worker, which calls it
  std::unique_ptr<Worker> worker_;
};

TEST_F(WorkerTest, ReportsLoadingUpToTheTotal) {
  ASSERT_FALSE(progress_.empty());
  EXPECT_EQ(progress_.back().first, progress_.back().second);
  EXPECT_EQ(progress_.back().second, worker_->memory().file_bytes);
  for (size_t i = 1; i < progress_.size(); ++i) {
    EXPECT_GT(progress_[i].first, progress_[i - 1].first);
  }
}

TEST_F(WorkerTest, LoadingEndsWhenItIsInterrupted) {
  int num_calls = 0;
  const auto worker = Worker::Create(*file_, spec_, MakeBackend(kReference), WorkerOptions(),
                                     [&](int64_t, int64_t) {
                                       ++num_calls;
                                       return absl::CancelledError("enough");
                                     });
  EXPECT_EQ(worker.status(), absl::CancelledError("enough"));
  EXPECT_EQ(num_calls, 1);
}

TEST_F(WorkerTest, RunsAheadUntilThePlanIsUsedUp) {
  worker_->Start(collector_.callback());
  ASSERT_TRUE(worker_->Submit(PromptPlan(1, 6)).ok());
  const std::vector<v1::StepResult> results = collector_.WaitForLast(1);
  ASSERT_EQ(results.size(), 6u);
  for (uint32_t step = 0; step < 6; ++step) {
    EXPECT_EQ(results[step].plan(), 1u);
    EXPECT_EQ(results[step].step(), step);
    EXPECT_EQ(results[step].last_of_plan(), step == 5);
    EXPECT_EQ(results[step].slots(0).position(), 20 + step);
    EXPECT_EQ(results[step].error(), "");
  }
}

TEST_F(WorkerTest, NewerPlanSupersedesTheRestAtAStepBorder) {
  // While step 3 is reported the next plan is submitted: one more step may run, as it was
  // announced.
  collector_.hook = [&](const v1::StepResult& result) {
    if (result.plan() == 1 && result.step() == 3) {
      EXPECT_TRUE(worker_->Submit(DecodePlan(2, 1, 2)).ok());
    }
  };
  worker_->Start(collector_.callback());
  ASSERT_TRUE(worker_->Submit(PromptPlan(1, 50)).ok());
  const std::vector<v1::StepResult> results = collector_.WaitForLast(2);
  ASSERT_EQ(results.size(), 7u);
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(results[i].plan(), i < 5 ? 1u : 2u);
    EXPECT_EQ(results[i].last_of_plan(), i == 4 || i == 6);
    EXPECT_EQ(results[i].slots(0).position(), 20 + i);  // no token is lost or made twice
  }
}

TEST_F(WorkerTest, FirstStepOfEveryWaitingPlanRuns) {
  // All three wait before the first runs, because its callback submits the others.
  collector_.hook = [&](const v1::StepResult& result) {
    if (result.plan() != 1 || result.step() != 0) return;
    for (uint64_t number = 2; number <= 4; ++number) {
      EXPECT_TRUE(worker_->Submit(DecodePlan(number, 1, 9)).ok());
    }
  };
  worker_->Start(collector_.callback());
  ASSERT_TRUE(worker_->Submit(PromptPlan(1, 1)).ok());
  const std::vector<v1::StepResult> results = collector_.WaitForLast(4);
  ASSERT_EQ(results.size(), 3u + 9u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(results[i].plan(), i + 1);
    EXPECT_TRUE(results[i].last_of_plan());
  }
}

TEST_F(WorkerTest, PlanEndsWhenNoSlotGoesOn) {
  worker_->Start(collector_.callback());
  v1::StepPlan plan = PromptPlan(1, 50);
  plan.mutable_starts(0)->set_max_new_tokens(3);
  ASSERT_TRUE(worker_->Submit(std::move(plan)).ok());
  const std::vector<v1::StepResult> results = collector_.WaitForLast(1);
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[2].slots(0).stop(), v1::SLOT_STOP_LENGTH);
  // A plan for the slot that stopped meanwhile still gets its result.
  ASSERT_TRUE(worker_->Submit(DecodePlan(2, 1, 8)).ok());
  EXPECT_EQ(collector_.WaitForLast(2).back().slots_size(), 0);
}

TEST_F(WorkerTest, RefusesABadPlanAndGoesOn) {
  worker_->Start(collector_.callback());
  v1::StepPlan bad = PromptPlan(1, 1);
  bad.mutable_prefill(0)->set_token_ids(3, 512);
  const absl::Status status = worker_->Submit(std::move(bad));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("prefill.token_ids"));
  EXPECT_TRUE(worker_->Submit(PromptPlan(1, 1)).ok());
  EXPECT_EQ(collector_.WaitForLast(1).size(), 1u);
}

TEST_F(WorkerTest, ReportsAFailedStepOnceAndThenRefuses) {
  worker_->Start(collector_.callback());
  ASSERT_TRUE(worker_->Submit(PromptPlan(1, 1)).ok());
  collector_.WaitForLast(1);
  ASSERT_TRUE(worker_->Submit(DecodePlan(2, 1, 1)).ok());
  v1::StepPlan wrong;  // after decode the worker alone knows the position: not 40
  wrong.set_plan(3);
  wrong.set_epoch(1);
  wrong.set_run_ahead(1);
  v1::PrefillChunk& chunk = *wrong.add_prefill();
  chunk.set_incarnation(1);
  chunk.set_first_position(40);
  chunk.add_token_ids(1);
  ASSERT_TRUE(worker_->Submit(std::move(wrong)).ok());
  const std::vector<v1::StepResult> results = collector_.WaitForLast(3);
  ASSERT_EQ(results.size(), 3u);
  EXPECT_THAT(results[2].error(), testing::HasSubstr("40"));
  EXPECT_EQ(results[2].slots_size(), 0);
  EXPECT_EQ(worker_->Submit(DecodePlan(4, 1, 1)).code(), absl::StatusCode::kUnavailable);
  worker_->Stop();
  EXPECT_EQ(collector_.WaitFor(3).size(), 3u);
}

TEST_F(WorkerTest, StopsInTheMiddleOfAPlan) {
  worker_->Start(collector_.callback());
  ASSERT_TRUE(worker_->Submit(PromptPlan(1, 100)).ok());
  collector_.WaitFor(2);
  worker_->Stop();
  worker_->Stop();
  EXPECT_EQ(worker_->Submit(DecodePlan(2, 1, 1)).code(), absl::StatusCode::kUnavailable);
}

WorkerOptions NextEpoch(uint64_t epoch) {
  WorkerOptions options = TestOptions(192, 2);
  options.epoch = epoch;
  return options;
}

std::vector<uint32_t> TokensOf(const std::vector<v1::StepResult>& results) {
  std::vector<uint32_t> tokens;
  for (const v1::StepResult& result : results) {
    for (const v1::SlotResult& slot : result.slots()) {
      tokens.insert(tokens.end(), slot.token_ids().begin(), slot.token_ids().end());
    }
  }
  return tokens;
}

TEST_F(WorkerTest, ResetEndsTheRunningPlanAndForgetsThoseThatWait) {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_at_step = false;
  collector_.hook = [&](const v1::StepResult& result) {
    if (result.step() != 3) return;
    {
      std::lock_guard lock(mutex);
      is_at_step = true;
    }
    changed.notify_all();
  };
  worker_->Start(collector_.callback());
  ASSERT_TRUE(worker_->Submit(PromptPlan(1, 100)).ok());
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return is_at_step; });
  }
  ASSERT_TRUE(worker_->Reset(NextEpoch(2)).ok());
  const size_t num_results = collector_.WaitFor(4).size();
  EXPECT_LT(num_results, 100u);  // not all steps ran, ...
  v1::StepPlan plan = PromptPlan(1, 3);
  EXPECT_EQ(worker_->Submit(plan).code(), absl::StatusCode::kInvalidArgument);  // epoch 1
  plan.set_epoch(2);
  ASSERT_TRUE(worker_->Submit(plan).ok());
  const auto results = collector_.WaitFor(num_results + 3);
  EXPECT_EQ(results[num_results].step(), 0u);  // ... and none ran after Reset()
}

TEST_F(WorkerTest, ResetLeavesNoStateAndAllWeights) {
  worker_->Start(collector_.callback());
  v1::StepPlan first = PromptPlan(1, 8, 64);
  first.mutable_prefill(0)->set_save_checkpoint(0);
  ASSERT_TRUE(worker_->Submit(first).ok());
  const auto before = collector_.WaitForLast(1);
  ASSERT_TRUE(worker_->Reset(NextEpoch(2)).ok());

  v1::StepPlan restore = PromptPlan(1, 1);
  restore.set_epoch(2);
  restore.clear_prefill();
  restore.clear_decode();
  restore.add_operations()->mutable_restore()->set_position(64);
  EXPECT_EQ(worker_->Submit(restore).code(), absl::StatusCode::kInvalidArgument);  // forgotten
  v1::StepPlan decode = DecodePlan(1, 1, 1);
  decode.set_epoch(2);
  EXPECT_EQ(worker_->Submit(decode).code(), absl::StatusCode::kInvalidArgument);  // never started

  first.set_epoch(2);
  ASSERT_TRUE(worker_->Submit(first).ok());
  std::vector<v1::StepResult> again = collector_.WaitFor(16);
  again.erase(again.begin(), again.begin() + 8);
  EXPECT_EQ(TokensOf(again), TokensOf(before));
}

TEST_F(WorkerTest, ResetTakesOtherSizes) {
  worker_->Start(collector_.callback());
  ASSERT_TRUE(worker_->Submit(PromptPlan(1, 8)).ok());
  const auto before = collector_.WaitForLast(1);
  WorkerOptions options = TestOptions(128, 3);
  options.epoch = 7;
  const int64_t weight_bytes = worker_->memory().weight_bytes;
  ASSERT_TRUE(worker_->Reset(options).ok());
  EXPECT_EQ(worker_->memory().weight_bytes, weight_bytes);
  v1::StepPlan plan = PromptPlan(1, 8);
  plan.set_epoch(7);
  plan.mutable_starts(0)->set_slot(2);
  plan.mutable_page_tables(0)->set_slot(2);
  plan.mutable_page_tables(0)->mutable_pages()->Truncate(2);  // 128 tokens have two pages
  plan.mutable_prefill(0)->set_slot(2);
  plan.mutable_decode(0)->set_slot(2);
  ASSERT_TRUE(worker_->Submit(plan).ok());
  std::vector<v1::StepResult> again = collector_.WaitFor(16);
  again.erase(again.begin(), again.begin() + 8);
  EXPECT_EQ(TokensOf(again), TokensOf(before));
}

TEST_F(WorkerTest, ResetRefusesSizesThatDoNotFitAndChangesNothing) {
  worker_->Start(collector_.callback());
  ASSERT_TRUE(worker_->Submit(PromptPlan(1, 2)).ok());
  collector_.WaitForLast(1);
  WorkerOptions options = NextEpoch(2);
  options.max_context = spec_.context_length + 1;
  EXPECT_EQ(worker_->Reset(options).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(worker_->Submit(DecodePlan(2, 1, 1)).ok());  // epoch 1 goes on, with its slots
  EXPECT_EQ(collector_.WaitForLast(2).back().slots(0).position(), 22u);
}

TEST_F(WorkerTest, ResetAfterStopIsRefused) {
  worker_->Start(collector_.callback());
  worker_->Stop();
  EXPECT_EQ(worker_->Reset(NextEpoch(2)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(WorkerTest, CanBeDestroyedWithoutStart) { worker_.reset(); }

TEST_F(WorkerTest, SubmitFromSeveralThreadsKeepsTheOrderOfNumbers) {
  worker_->Start(collector_.callback());
  ASSERT_TRUE(worker_->Submit(PromptPlan(1, 1)).ok());
  std::mutex mutex;  // number and submission together, as a coordinator would
  uint64_t number = 1;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 10; ++j) {
        std::lock_guard lock(mutex);
        EXPECT_TRUE(worker_->Submit(DecodePlan(++number, 1, 3)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<v1::StepResult> results = collector_.WaitForLast(31);
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_GE(results[i].plan(), results[i - 1].plan());
    EXPECT_EQ(results[i].slots(0).position(), results[i - 1].slots(0).position() + 1);
  }
}

}  // namespace
}  // namespace switchyard::worker
