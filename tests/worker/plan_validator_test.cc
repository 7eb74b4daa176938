#include "worker/plan_validator.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"

namespace switchyard::worker {
namespace {

using testing::HasSubstr;

constexpr PlanLimits kLimits{.num_slots = 2,
                             .num_pages = 8,
                             .num_checkpoints = 2,
                             .max_context = 200,
                             .max_step_rows = 100,
                             .vocab_size = 50,
                             .num_choices = 48,
                             .epoch = 3};

v1::StepPlan Plan(uint64_t number) {
  v1::StepPlan plan;
  plan.set_plan(number);
  plan.set_epoch(3);
  plan.set_run_ahead(1);
  return plan;
}

void AddStart(v1::StepPlan& plan, uint32_t slot, uint64_t incarnation) {
  v1::SlotStart& start = *plan.add_starts();
  start.set_slot(slot);
  start.set_incarnation(incarnation);
  start.set_max_new_tokens(10);
}

void AddPages(v1::StepPlan& plan, uint32_t slot, uint32_t first, std::vector<uint32_t> pages) {
  v1::PageTableUpdate& update = *plan.add_page_tables();
  update.set_slot(slot);
  update.set_first_entry(first);
  for (const uint32_t page : pages) update.add_pages(page);
}

v1::PrefillChunk& AddChunk(v1::StepPlan& plan, uint32_t slot, uint64_t incarnation, uint32_t first,
                           int num_tokens) {
  v1::PrefillChunk& chunk = *plan.add_prefill();
  chunk.set_slot(slot);
  chunk.set_incarnation(incarnation);
  chunk.set_first_position(first);
  for (int i = 0; i < num_tokens; ++i) chunk.add_token_ids(7);
  return chunk;
}

void AddDecode(v1::StepPlan& plan, uint32_t slot, uint64_t incarnation) {
  v1::DecodeSlot& decode = *plan.add_decode();
  decode.set_slot(slot);
  decode.set_incarnation(incarnation);
}

// Slot 0 has two pages and 64 computed tokens, saved as checkpoint 1.
class PlanValidatorTest : public testing::Test {
 protected:
  PlanValidatorTest() : validator_(kLimits) {
    v1::StepPlan plan = Plan(1);
    AddStart(plan, 0, 1);
    AddPages(plan, 0, 0, {3, 5});
    AddChunk(plan, 0, 1, 0, 64).set_save_checkpoint(1);
    EXPECT_TRUE(validator_.Accept(plan).ok());
  }

  // Expects a refusal that names the field, and that the same plan without the fault would pass
  // afterwards: nothing of a refused plan has stayed.
  void ExpectRefused(const v1::StepPlan& plan, const std::string& field) {
    const absl::Status status = validator_.Accept(plan);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(Message(status)), HasSubstr(field));
    v1::StepPlan good = Plan(2);
    AddChunk(good, 0, 1, 64, 10);
    PlanValidator copy = validator_;
    EXPECT_TRUE(copy.Accept(good).ok());
  }

  PlanValidator validator_;
};

TEST_F(PlanValidatorTest, AcceptsAGenerationFromStartToFree) {
  v1::StepPlan prompt = Plan(2);
  AddChunk(prompt, 0, 1, 64, 10).set_sample(true);
  AddDecode(prompt, 0, 1);
  prompt.set_run_ahead(8);
  EXPECT_TRUE(validator_.Accept(prompt).ok());
  v1::StepPlan decode = Plan(3);
  AddDecode(decode, 0, 1);
  EXPECT_TRUE(validator_.Accept(decode).ok());
  v1::StepPlan next = Plan(4);
  next.add_operations()->mutable_free()->set_slot(0);
  AddStart(next, 0, 2);
  v1::SlotOperation::Restore& restore = *next.add_operations()->mutable_restore();
  restore.set_slot(0);
  restore.set_checkpoint(1);
  restore.set_position(64);
  AddPages(next, 0, 0, {3, 6});
  AddChunk(next, 0, 2, 64, 1).set_sample(true);
  EXPECT_TRUE(validator_.Accept(next).ok());
}

TEST_F(PlanValidatorTest, TakesPlansForAnEarlierUseAsNothing) {
  v1::StepPlan next = Plan(2);
  AddStart(next, 0, 5);
  EXPECT_TRUE(validator_.Accept(next).ok());
  v1::StepPlan late = Plan(3);
  AddChunk(late, 0, 1, 64, 10);
  AddDecode(late, 0, 1);
  EXPECT_TRUE(validator_.Accept(late).ok());
}

TEST_F(PlanValidatorTest, RefusesAnotherEpoch) {
  v1::StepPlan plan = Plan(2);
  plan.set_epoch(2);
  ExpectRefused(plan, "epoch");
}

TEST_F(PlanValidatorTest, RefusesNumbersThatDoNotGrow) { ExpectRefused(Plan(1), "plan"); }

TEST_F(PlanValidatorTest, RefusesNoSteps) {
  v1::StepPlan plan = Plan(2);
  plan.set_run_ahead(0);
  ExpectRefused(plan, "run_ahead");
}

TEST_F(PlanValidatorTest, RefusesUnknownNumbers) {
  v1::StepPlan slot = Plan(2);
  AddStart(slot, 2, 1);
  ExpectRefused(slot, "starts.slot");
  v1::StepPlan free = Plan(2);
  free.add_operations()->mutable_free()->set_slot(7);
  ExpectRefused(free, "operations.free.slot");
  v1::StepPlan page = Plan(2);
  AddPages(page, 0, 2, {8});
  ExpectRefused(page, "page_tables.pages");
  v1::StepPlan decode = Plan(2);
  AddDecode(decode, 2, 1);
  ExpectRefused(decode, "decode.slot");
  v1::StepPlan chunk = Plan(2);
  AddChunk(chunk, 4000000000u, 1, 0, 1);
  ExpectRefused(chunk, "prefill.slot");
  v1::StepPlan save = Plan(2);
  AddChunk(save, 0, 1, 64, 64).set_save_checkpoint(2);
  ExpectRefused(save, "prefill.save_checkpoint");
  v1::StepPlan restore = Plan(2);
  AddStart(restore, 1, 1);
  v1::SlotOperation::Restore& operation = *restore.add_operations()->mutable_restore();
  operation.set_slot(1);
  operation.set_checkpoint(2);
  ExpectRefused(restore, "operations.restore.checkpoint");
}

TEST_F(PlanValidatorTest, RefusesAnEmptyOperation) {
  v1::StepPlan plan = Plan(2);
  plan.add_operations();
  ExpectRefused(plan, "operations.operation");
}

TEST_F(PlanValidatorTest, RefusesARestoreThatTheCheckpointDoesNotHold) {
  for (const auto& [checkpoint, position] : {std::pair{0u, 64u}, std::pair{1u, 128u}}) {
    v1::StepPlan plan = Plan(2);
    AddStart(plan, 1, 1);
    v1::SlotOperation::Restore& restore = *plan.add_operations()->mutable_restore();
    restore.set_slot(1);
    restore.set_checkpoint(checkpoint);
    restore.set_position(position);
    ExpectRefused(plan, "operations.restore.position");
  }
  v1::StepPlan idle = Plan(2);
  v1::SlotOperation::Restore& restore = *idle.add_operations()->mutable_restore();
  restore.set_slot(1);
  restore.set_checkpoint(1);
  restore.set_position(64);
  ExpectRefused(idle, "operations.restore.slot");
}

TEST_F(PlanValidatorTest, RefusesTokensOutsideTheVocabulary) {
  v1::StepPlan chunk = Plan(2);
  AddChunk(chunk, 0, 1, 64, 3).set_token_ids(1, 50);
  ExpectRefused(chunk, "prefill.token_ids");
  v1::StepPlan stop = Plan(2);
  AddStart(stop, 1, 1);
  stop.mutable_starts(0)->add_stop_token_ids(4294967295u);
  ExpectRefused(stop, "starts.stop_token_ids");
  v1::StepPlan reused = Plan(2);
  AddStart(reused, 1, 1);
  reused.mutable_starts(0)->add_reused_token_ids(50);
  ExpectRefused(reused, "starts.reused_token_ids");
  v1::StepPlan bias = Plan(2);
  AddStart(bias, 1, 1);
  (*bias.mutable_starts(0)->mutable_sampling()->mutable_logit_bias())[50] = 1;
  ExpectRefused(bias, "logit_bias");
}

TEST_F(PlanValidatorTest, RefusesStartsThatCannotRun) {
  v1::StepPlan again = Plan(2);
  AddStart(again, 0, 1);
  ExpectRefused(again, "starts.incarnation");
  v1::StepPlan twice = Plan(2);
  AddStart(twice, 1, 1);
  AddStart(twice, 1, 2);
  ExpectRefused(twice, "starts.slot");
  v1::StepPlan nothing = Plan(2);
  AddStart(nothing, 1, 1);
  nothing.mutable_starts(0)->set_max_new_tokens(0);
  ExpectRefused(nothing, "starts.max_new_tokens");
  v1::StepPlan logprobs = Plan(2);
  AddStart(logprobs, 1, 1);
  logprobs.mutable_starts(0)->set_num_logprobs(49);
  ExpectRefused(logprobs, "starts.num_logprobs");
  v1::StepPlan sampling = Plan(2);
  AddStart(sampling, 1, 1);
  sampling.mutable_starts(0)->mutable_sampling()->set_top_p(2);
  ExpectRefused(sampling, "top_p");
}

TEST_F(PlanValidatorTest, RefusesPositionsOutOfOrder) {
  for (const uint32_t first : {0u, 63u, 65u}) {
    v1::StepPlan plan = Plan(2);
    AddChunk(plan, 0, 1, first, 1);
    ExpectRefused(plan, "prefill.first_position");
  }
}

TEST_F(PlanValidatorTest, AllowsTheNextChunkToRejectProvisionalRowsOnly) {
  v1::StepPlan window = Plan(2);
  AddChunk(window, 0, 1, 64, 4).set_num_provisional_rows(3);
  ASSERT_TRUE(validator_.Accept(window).ok());
  for (const uint32_t first : {65u, 66u, 68u}) {
    v1::StepPlan next = Plan(3);
    AddChunk(next, 0, 1, first, 1);
    PlanValidator copy = validator_;
    EXPECT_TRUE(copy.Accept(next).ok()) << first;
  }
  for (const uint32_t first : {64u, 69u}) {
    v1::StepPlan next = Plan(3);
    AddChunk(next, 0, 1, first, 1);
    EXPECT_FALSE(validator_.Accept(next).ok()) << first;
  }
}

TEST_F(PlanValidatorTest, RefusesChunksThatCannotRun) {
  v1::StepPlan empty = Plan(2);
  AddChunk(empty, 0, 1, 64, 0);
  ExpectRefused(empty, "prefill.token_ids");
  v1::StepPlan provisional = Plan(2);
  AddChunk(provisional, 0, 1, 64, 3).set_num_provisional_rows(3);
  ExpectRefused(provisional, "prefill.num_provisional_rows");
  v1::StepPlan many = Plan(2);
  AddChunk(many, 0, 1, 64, 20).set_num_provisional_rows(16);
  ExpectRefused(many, "prefill.num_provisional_rows");
  v1::StepPlan pages = Plan(2);
  AddChunk(pages, 0, 1, 64, 65);
  ExpectRefused(pages, "pages");
  v1::StepPlan twice = Plan(2);
  AddChunk(twice, 0, 1, 64, 1);
  AddChunk(twice, 0, 1, 65, 1);
  ExpectRefused(twice, "prefill.slot");
  v1::StepPlan incarnation = Plan(2);
  AddChunk(incarnation, 0, 2, 64, 1);
  ExpectRefused(incarnation, "prefill.incarnation");
  v1::StepPlan context = Plan(2);
  AddChunk(context, 0, 1, 150, 51);
  ExpectRefused(context, "context");
  v1::StepPlan overflow = Plan(2);
  AddChunk(overflow, 0, 1, 4294967295u, 2);
  ExpectRefused(overflow, "context");
}

TEST_F(PlanValidatorTest, RefusesCheckpointsBetweenPageBorders) {
  v1::StepPlan odd = Plan(2);
  AddChunk(odd, 0, 1, 64, 10).set_save_checkpoint(0);
  ExpectRefused(odd, "prefill.save_checkpoint");
  v1::StepPlan provisional = Plan(2);
  v1::PrefillChunk& chunk = AddChunk(provisional, 0, 1, 64, 64);
  chunk.set_save_checkpoint(0);
  chunk.set_num_provisional_rows(1);
  ExpectRefused(provisional, "prefill.save_checkpoint");
}

TEST_F(PlanValidatorTest, RefusesPageTablesWithHolesOrBeyondTheContext) {
  v1::StepPlan hole = Plan(2);
  AddPages(hole, 0, 3, {1});
  ExpectRefused(hole, "page_tables.first_entry");
  v1::StepPlan beyond = Plan(2);
  AddPages(beyond, 0, 2, {1, 2, 4});  // 200 tokens are four pages
  ExpectRefused(beyond, "page_tables.first_entry");
}

TEST_F(PlanValidatorTest, RefusesDecodeWithoutASampledToken) {
  v1::StepPlan decode = Plan(2);
  AddDecode(decode, 0, 1);
  ExpectRefused(decode, "decode.slot");
  v1::StepPlan incarnation = Plan(2);
  AddDecode(incarnation, 0, 2);
  ExpectRefused(incarnation, "decode.incarnation");
}

TEST_F(PlanValidatorTest, CountsTheRowsOfTheFirstStep) {
  v1::StepPlan plan = Plan(2);
  AddPages(plan, 0, 2, {0, 1});
  AddStart(plan, 1, 1);
  AddPages(plan, 1, 0, {6});
  AddChunk(plan, 0, 1, 64, 60).set_sample(true);
  AddChunk(plan, 1, 1, 0, 40).set_sample(true);
  AddDecode(plan, 0, 1);  // joins after its chunk: no row of its own
  PlanValidator copy = validator_;
  EXPECT_TRUE(copy.Accept(plan).ok());
  plan.mutable_prefill(1)->add_token_ids(1);
  ExpectRefused(plan, "prefill.token_ids");
}

}  // namespace
}  // namespace switchyard::worker
