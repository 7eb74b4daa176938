#include "worker/step_executor.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/cache/checkpoint.h"
#include "worker/engine_harness.h"

namespace switchyard::worker {
namespace {

class StepExecutorTest : public testing::Test {
 protected:
  StepExecutorTest() : tokens_(ReadTokens(FixturePath("base.tokens.txt"))) {}

  EngineHarness Open(int64_t max_context = 192, int num_slots = 2,
                     std::vector<int32_t> never_sampled = {}) {
    WorkerOptions options = TestOptions(max_context, num_slots);
    options.never_sampled = std::move(never_sampled);
    return {FixtureModel("base"), kReference, options};
  }

  // Starts slot 0 on the first `num_tokens` and runs until it stops, or for `max_steps`.
  std::vector<v1::SlotResult> Generate(EngineHarness& engine, size_t num_tokens,
                                       void (*change)(v1::SlotStart&), uint32_t max_steps = 500) {
    v1::StepPlan plan = engine.NewPlan();
    change(engine.AddStart(plan, 0));
    engine.AddChunk(plan, 0, 0, absl::MakeSpan(tokens_).subspan(0, num_tokens)).set_sample(true);
    engine.AddDecode(plan, 0);
    plan.set_run_ahead(max_steps);
    engine.Begin(plan);
    std::vector<v1::SlotResult> results;
    for (uint32_t step = 0;; ++step) {
      results.push_back(engine.Step(plan, step).slots(0));
      if (!engine.executor().HasStepAfter(plan, step)) return results;
    }
  }

  static std::vector<uint32_t> Ids(const std::vector<v1::SlotResult>& results) {
    std::vector<uint32_t> ids;
    for (const v1::SlotResult& result : results) {
      ids.insert(ids.end(), result.token_ids().begin(), result.token_ids().end());
    }
    return ids;
  }

  std::vector<int32_t> tokens_;
};

TEST_F(StepExecutorTest, StopsAfterMaxNewTokens) {
  EngineHarness engine = Open();
  const auto results =
      Generate(engine, 30, [](v1::SlotStart& start) { start.set_max_new_tokens(5); });
  ASSERT_EQ(results.size(), 5u);
  EXPECT_EQ(results[0].num_rows(), 30u);
  EXPECT_EQ(results[0].position(), 30u);
  for (size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(results[i].num_rows(), 1u);
    EXPECT_EQ(results[i].position(), 30u + i);
    EXPECT_EQ(results[i].stop(), i == 4 ? v1::SLOT_STOP_LENGTH : v1::SLOT_STOP_UNSPECIFIED);
  }
}

TEST_F(StepExecutorTest, StopsAtAStopTokenAndReportsIt) {
  EngineHarness engine = Open();
  const std::vector<uint32_t> free = Ids(Generate(
      engine, 30, [](v1::SlotStart&) {}, 12));
  // The first id that did not occur before is found where it first occurs.
  static uint32_t stop_id;
  stop_id = free[7];
  const auto first = std::find(free.begin(), free.end(), stop_id) - free.begin();
  const auto results = Generate(engine, 30, [](v1::SlotStart& start) {
    start.add_stop_token_ids(499);
    start.add_stop_token_ids(stop_id);
  });
  EXPECT_EQ(Ids(results), std::vector<uint32_t>(free.begin(), free.begin() + first + 1));
  EXPECT_EQ(results.back().stop(), v1::SLOT_STOP_TOKEN);
}

TEST_F(StepExecutorTest, PromptAndCompletionTogetherFillTheContext) {
  EngineHarness engine = Open(/*max_context=*/60);
  const auto results = Generate(engine, 54, [](v1::SlotStart&) {});
  EXPECT_EQ(results.size(), 6u);
  EXPECT_EQ(results.back().stop(), v1::SLOT_STOP_CONTEXT);
  EXPECT_EQ(results.back().token_ids_size(), 1);
  // The length limit counts first where both hold.
  EXPECT_EQ(
      Generate(engine, 54, [](v1::SlotStart& start) { start.set_max_new_tokens(6); }).back().stop(),
      v1::SLOT_STOP_LENGTH);
  EXPECT_EQ(Generate(engine, 59, [](v1::SlotStart&) {}).size(), 1u);
}

TEST_F(StepExecutorTest, StopsWhereNoPageIsLeft) {
  EngineHarness engine = Open();
  v1::StepPlan plan = engine.NewPlan();
  engine.AddStart(plan, 0);
  plan.mutable_page_tables(0)->mutable_pages()->Truncate(1);
  engine.AddChunk(plan, 0, 0, absl::MakeSpan(tokens_).subspan(0, 62)).set_sample(true);
  engine.AddDecode(plan, 0);
  plan.set_run_ahead(9);
  engine.Begin(plan);
  EXPECT_EQ(engine.Step(plan, 0).slots(0).position(), 62u);
  EXPECT_EQ(engine.Step(plan, 1).slots(0).position(), 63u);
  EXPECT_EQ(engine.Step(plan, 2).slots(0).position(), 64u);
  EXPECT_TRUE(engine.executor().HasStepAfter(plan, 2));  // a page may come with the next plan
  const v1::StepResult result = engine.Step(plan, 3);
  EXPECT_EQ(result.slots(0).stop(), v1::SLOT_STOP_CONTEXT);
  EXPECT_EQ(result.slots(0).token_ids_size(), 0);
  EXPECT_EQ(result.slots(0).position(), 64u);
  EXPECT_FALSE(engine.executor().HasStepAfter(plan, 3));
}

TEST_F(StepExecutorTest, PlanForAStoppedSlotIsANoOpForIt) {
  EngineHarness engine = Open();
  Generate(engine, 30, [](v1::SlotStart& start) { start.set_max_new_tokens(2); });
  v1::StepPlan plan = engine.NewPlan();
  engine.AddStart(plan, 1);
  engine.AddChunk(plan, 1, 0, absl::MakeSpan(tokens_).subspan(0, 5)).set_sample(true);
  engine.AddDecode(plan, 0);
  const v1::StepResult result = engine.Run(plan);
  ASSERT_EQ(result.slots_size(), 1);
  EXPECT_EQ(result.slots(0).slot(), 1u);
  // And alone: a step with nothing to do.
  v1::StepPlan nothing = engine.NewPlan();
  engine.AddDecode(nothing, 0);
  EXPECT_EQ(engine.Run(nothing).slots_size(), 0);
}

TEST_F(StepExecutorTest, FreedSlotStartsAnew) {
  EngineHarness engine = Open();
  const auto run = [&] {
    return Ids(Generate(engine, 40, [](v1::SlotStart& start) { start.set_max_new_tokens(8); }));
  };
  const std::vector<uint32_t> first = run();
  v1::StepPlan free = engine.NewPlan();
  free.add_operations()->mutable_free()->set_slot(0);
  engine.Run(free);
  EXPECT_EQ(run(), first);
  EXPECT_EQ(run(), first);  // without a free between them
}

TEST_F(StepExecutorTest, ChunkThatDoesNotContinueItsSequenceFails) {
  EngineHarness engine = Open();
  v1::StepPlan plan = engine.NewPlan();
  engine.AddStart(plan, 0);
  engine.AddChunk(plan, 0, 0, absl::MakeSpan(tokens_).subspan(0, 5)).set_sample(true);
  engine.AddDecode(plan, 0);
  engine.Run(plan);
  v1::StepPlan wrong = engine.NewPlan();
  // The validator cannot know how far decoding went; the executor does.
  engine.AddChunk(wrong, 0, 9, absl::MakeSpan(tokens_).subspan(5, 2));
  engine.Begin(wrong);
  v1::StepResult result;
  EXPECT_EQ(engine.executor().RunStep(wrong, 0, result).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(StepExecutorTest, ReportsLogitsAndLogprobsOfTheSampledPositions) {
  EngineHarness engine = Open();
  const auto results = Generate(engine, 20, [](v1::SlotStart& start) {
    start.set_return_logits(true);
    start.set_num_logprobs(3);
    start.set_max_new_tokens(4);
  });
  for (const v1::SlotResult& result : results) {
    ASSERT_EQ(result.logits().size(), static_cast<size_t>(engine.vocab_size()) * sizeof(float));
    const auto* logits = reinterpret_cast<const float*>(result.logits().data());
    double total = 0;
    for (int64_t i = 0; i < engine.vocab_size(); ++i) total += std::exp(double{logits[i]});
    ASSERT_EQ(result.logprobs_size(), 1);
    ASSERT_EQ(result.top_logprobs_size(), 3);
    EXPECT_EQ(result.logprobs(0).token_id(), result.token_ids(0));
    EXPECT_EQ(result.top_logprobs(0).token_id(), result.token_ids(0));  // greedy
    // One rounding to float of a value of size ten.
    EXPECT_NEAR(result.logprobs(0).logprob(), logits[result.token_ids(0)] - std::log(total), 1e-6);
    EXPECT_GE(result.top_logprobs(0).logprob(), result.top_logprobs(1).logprob());
    EXPECT_GE(result.top_logprobs(1).logprob(), result.top_logprobs(2).logprob());
  }
}

TEST_F(StepExecutorTest, NeverSamplesAMaskedId) {
  EngineHarness engine = Open(192, 2, {7, 499});
  const auto results = Generate(engine, 20, [](v1::SlotStart& start) {
    (*start.mutable_sampling()->mutable_logit_bias())[7] = 100;
    start.mutable_sampling()->set_temperature(1);
    start.set_max_new_tokens(30);
  });
  for (const uint32_t id : Ids(results)) EXPECT_NE(id, 7u);
}

TEST_F(StepExecutorTest, SeededDrawsDoNotDependOnCompanyOrSlot) {
  const auto seeded = [](v1::SlotStart& start) {
    start.mutable_sampling()->set_temperature(1);
    start.mutable_sampling()->set_seed(42);
    start.set_max_new_tokens(16);
  };
  EngineHarness engine = Open(192, 2);
  const std::vector<uint32_t> alone = Ids(Generate(engine, 20, seeded));
  v1::StepPlan plan = engine.NewPlan();
  for (const int slot : {0, 1}) {
    v1::SlotStart& start = engine.AddStart(plan, slot);
    seeded(start);
    if (slot == 0) start.mutable_sampling()->set_seed(43);
    engine.AddChunk(plan, slot, 0, absl::MakeSpan(tokens_).subspan(0, 20)).set_sample(true);
    engine.AddDecode(plan, slot);
  }
  plan.set_run_ahead(16);
  engine.Begin(plan);
  std::vector<uint32_t> other, same;
  for (uint32_t step = 0; step < 16; ++step) {
    const v1::StepResult result = engine.Step(plan, step);
    other.push_back(result.slots(0).token_ids(0));
    same.push_back(result.slots(1).token_ids(0));
  }
  EXPECT_EQ(same, alone);
  EXPECT_NE(other, alone);
}

TEST_F(StepExecutorTest, PenaltiesCountAReplayedOutputAsOutput) {
  // A lost sequence is replayed as one chunk: its output must weigh as before.
  // The bias makes the model repeat itself, so that the penalty has something to do.
  const auto biased = [](v1::SlotStart& start) {
    (*start.mutable_sampling()->mutable_logit_bias())[10] = 8;
    (*start.mutable_sampling()->mutable_logit_bias())[11] = 8;
    start.set_num_prompt_tokens(20);
    start.set_max_new_tokens(12);
  };
  static constexpr auto kPenalised = [](v1::SlotStart& start) {
    (*start.mutable_sampling()->mutable_logit_bias())[10] = 8;
    (*start.mutable_sampling()->mutable_logit_bias())[11] = 8;
    start.mutable_sampling()->set_frequency_penalty(2);
    start.set_num_prompt_tokens(20);
    start.set_max_new_tokens(12);
  };
  EngineHarness engine = Open();
  const std::vector<uint32_t> whole = Ids(Generate(engine, 20, kPenalised));
  EXPECT_NE(whole, Ids(Generate(engine, 20, biased)));
  tokens_.resize(20);
  tokens_.insert(tokens_.end(), whole.begin(), whole.begin() + 5);
  std::vector<uint32_t> replayed(whole.begin(), whole.begin() + 5);
  for (const uint32_t id : Ids(Generate(engine, 25, kPenalised))) replayed.push_back(id);
  replayed.resize(12);
  EXPECT_EQ(replayed, whole);
}

TEST_F(StepExecutorTest, RejectedDraftsDoNotCountForPenalties) {
  EngineHarness engine = Open();
  const auto sample_after = [&](bool with_window) {
    v1::StepPlan start = engine.NewPlan();
    v1::SlotStart& slot = engine.AddStart(start, 0);
    slot.mutable_sampling()->set_frequency_penalty(3);
    slot.set_return_logits(true);
    engine.AddChunk(start, 0, 0, absl::MakeSpan(tokens_).subspan(0, 10));
    engine.Run(start);
    if (with_window) {
      v1::StepPlan window = engine.NewPlan();
      // The draft repeats what greedy would choose, so counting it would change the choice.
      std::vector<int32_t> draft(4, 0);
      draft[0] = tokens_[10];
      v1::PrefillChunk& chunk = engine.AddChunk(window, 0, 10, draft);
      chunk.set_num_provisional_rows(3);
      engine.Run(window);
    }
    v1::StepPlan next = engine.NewPlan();
    const size_t first = with_window ? 11 : 10;
    engine
        .AddChunk(next, 0, static_cast<int64_t>(first),
                  absl::MakeSpan(tokens_).subspan(first, 12 - first))
        .set_sample(true);
    return engine.Run(next).slots(0).token_ids(0);
  };
  EXPECT_EQ(sample_after(true), sample_after(false));
}

TEST_F(StepExecutorTest, NoStopTokenBeforeMinNewTokens) {
  EngineHarness engine = Open();
  const std::vector<uint32_t> plain =
      Ids(Generate(engine, 30, [](v1::SlotStart& start) { start.set_max_new_tokens(6); }));
  static uint32_t stop_id;
  stop_id = plain[2];
  const auto run = [&](void (*change)(v1::SlotStart&)) {
    return Ids(Generate(engine, 30, change));
  };
  const std::vector<uint32_t> stopped = run([](v1::SlotStart& start) {
    start.set_max_new_tokens(20);
    start.add_stop_token_ids(stop_id);
  });
  EXPECT_EQ(stopped.back(), stop_id);
  EXPECT_LE(stopped.size(), 3u);
  const std::vector<uint32_t> longer = run([](v1::SlotStart& start) {
    start.set_max_new_tokens(20);
    start.add_stop_token_ids(stop_id);
    start.set_min_new_tokens(10);
  });
  ASSERT_GE(longer.size(), 11u);
  EXPECT_EQ(std::count(longer.begin(), longer.begin() + 10, stop_id), 0);
}

// Where all ids are masked nothing can be sampled: as with logits that are not numbers, the slot
// fails alone.
TEST_F(StepExecutorTest, ASlotThatGivesNoTokenFailsAlone) {
  const auto run = [&](bool has_failing) {
    EngineHarness engine = Open();
    v1::StepPlan plan = engine.NewPlan();
    engine.AddStart(plan, 0).set_max_new_tokens(8);
    engine.AddChunk(plan, 0, 0, absl::MakeSpan(tokens_).subspan(0, 20)).set_sample(true);
    engine.AddDecode(plan, 0);
    v1::SlotStart& other = engine.AddStart(plan, 1);
    if (has_failing) {
      other.set_min_new_tokens(1);
      for (int64_t id = 0; id < engine.vocab_size(); ++id) {
        other.add_stop_token_ids(static_cast<uint32_t>(id));
      }
    }
    engine.AddChunk(plan, 1, 0, absl::MakeSpan(tokens_).subspan(3, 20)).set_sample(true);
    engine.AddDecode(plan, 1);
    plan.set_run_ahead(8);
    engine.Begin(plan);
    std::vector<uint32_t> ids;
    for (uint32_t step = 0; step < 8; ++step) {
      const v1::StepResult result = engine.Step(plan, step);
      for (const v1::SlotResult& slot : result.slots()) {
        if (slot.slot() == 0) ids.push_back(slot.token_ids(0));
        if (slot.slot() == 1 && has_failing) {
          EXPECT_EQ(step, 0u);
          EXPECT_EQ(slot.stop(), v1::SLOT_STOP_FAILED);
          EXPECT_EQ(slot.token_ids_size(), 0);
          EXPECT_NE(slot.error(), "");
        }
      }
    }
    return ids;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_F(StepExecutorTest, LedgerCoversTheStep) {
  EngineHarness engine = Open();
  v1::StepPlan plan = engine.NewPlan();
  engine.AddStart(plan, 0);
  engine.AddChunk(plan, 0, 0, tokens_).set_sample(true);
  const v1::StepResult result = engine.Run(plan);
  double covered = 0, unattributed = 0;
  bool has_experts = false, has_head = false;
  for (const v1::StageCost& cost : result.costs()) {
    covered += cost.seconds();
    if (cost.stage() == v1::STAGE_UNSPECIFIED) unattributed = cost.seconds();
    has_experts |= cost.stage() == v1::STAGE_EXPERTS_DEVICE && cost.weight_bytes() > 0;
    has_head |= cost.stage() == v1::STAGE_HEAD && cost.weight_bytes() > 0;
  }
  EXPECT_TRUE(has_experts);
  EXPECT_TRUE(has_head);
  EXPECT_GT(result.seconds(), 0);
  EXPECT_NEAR(covered, result.seconds(), 1e-9);
  EXPECT_LE(unattributed, 0.05 * result.seconds());
}

TEST_F(StepExecutorTest, RefusesOptionsThatCannotWork) {
  absl::StatusOr<model::GgufFile> file = model::GgufFile::Open(FixtureModel("base"));
  ASSERT_TRUE(file.ok());
  absl::StatusOr<model::ModelSpec> spec = model::LoadModelSpec(*file);
  ASSERT_TRUE(spec.ok());
  const auto create = [&](const WorkerOptions& options) {
    return StepExecutor::Create(*file, *spec, MakeBackend(kReference), options, {}).status().code();
  };
  WorkerOptions options = TestOptions(64);
  EXPECT_EQ(create(options), absl::StatusCode::kOk);
  options.max_step_rows = 0;
  EXPECT_EQ(create(options), absl::StatusCode::kInvalidArgument);
  options = TestOptions(64);
  options.never_sampled = {512};
  EXPECT_EQ(create(options), absl::StatusCode::kInvalidArgument);
  options = TestOptions(64);
  options.max_context = spec->context_length + 1;
  EXPECT_EQ(create(options), absl::StatusCode::kInvalidArgument);
}

TEST(CheckpointStoreTest, ReportsMemoryThatThereIsNot) {
  const auto store = CheckpointStore::Create(2, int64_t{1} << 60);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace switchyard::worker
