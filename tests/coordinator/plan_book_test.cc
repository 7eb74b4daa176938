#include "coordinator/plan_book.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

constexpr int64_t kVocabSize = 100;

v1::WorkerSizes Sizes() {
  v1::WorkerSizes sizes;
  sizes.set_num_slots(3);
  sizes.set_num_pages(8);
  sizes.set_max_context(128);
  sizes.set_max_step_rows(64);
  return sizes;
}

// Slot 0 gets a chunk of five tokens at position 64 and decodes on; slot 1 decodes; up to 4 steps.
v1::StepPlan MixedPlan(uint64_t number) {
  v1::StepPlan plan;
  plan.set_plan(number);
  plan.set_run_ahead(4);
  v1::SlotStart& start = *plan.add_starts();
  start.set_slot(0);
  start.set_incarnation(7);
  start.set_num_logprobs(2);
  start.set_max_new_tokens(6);
  v1::PrefillChunk& chunk = *plan.add_prefill();
  chunk.set_slot(0);
  chunk.set_incarnation(7);
  chunk.set_first_position(64);
  for (uint32_t i = 0; i < 5; ++i) chunk.add_token_ids(i);
  chunk.set_sample(true);
  for (const uint32_t slot : {0u, 1u}) {
    v1::DecodeSlot& decode = *plan.add_decode();
    decode.set_slot(slot);
    decode.set_incarnation(slot == 0 ? 7 : 3);
  }
  return plan;
}

// What a worker answers to it.
v1::StepResult ResultOf(uint64_t plan, uint32_t step) {
  v1::StepResult result;
  result.set_plan(plan);
  result.set_step(step);
  result.set_last_of_plan(step == 3);
  result.set_seconds(0.5);
  result.add_costs()->set_seconds(0.25);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    v1::RankCost& cost = *result.add_ranks();
    cost.set_rank(rank);
    cost.set_seconds(0.25);
    cost.add_costs()->set_seconds(0.125);
    v1::PeerTraffic& traffic = *cost.add_received();
    traffic.set_peer(1 - rank);
    traffic.set_bytes(4096);
    traffic.set_num_messages(2);
  }
  v1::SlotResult& first = *result.add_slots();
  first.set_slot(0);
  first.set_incarnation(7);
  first.add_token_ids(99);
  first.set_position(69 + step);
  first.set_num_rows(step == 0 ? 5 : 1);
  first.add_logprobs()->set_token_id(99);
  first.add_top_logprobs()->set_token_id(99);
  first.add_top_logprobs()->set_logprob(-std::numeric_limits<float>::infinity());
  v1::SlotResult& second = *result.add_slots();
  second.set_slot(1);
  second.set_incarnation(3);
  second.add_token_ids(1);
  second.set_position(30 + step);
  second.set_num_rows(1);
  return result;
}

TEST(PlanBookTest, AcceptsResultsInOrder) {
  PlanBook book(Sizes(), kVocabSize);
  ASSERT_TRUE(book.Add(MixedPlan(5)).ok());
  v1::StepPlan free;  // a plan without rows is answered too
  free.set_plan(6);
  free.set_run_ahead(1);
  ASSERT_TRUE(book.Add(free).ok());
  EXPECT_EQ(book.next_rows(), 6);  // five of the chunk, one of slot 1
  for (uint32_t step = 0; step < 4; ++step) {
    EXPECT_EQ(book.Accept(ResultOf(5, step)), absl::OkStatus());
  }
  EXPECT_EQ(book.num_plans(), 1u);
  EXPECT_EQ(book.next_rows(), 0);
  v1::StepResult last;
  last.set_plan(6);
  last.set_last_of_plan(true);
  EXPECT_EQ(book.Accept(last), absl::OkStatus());
  EXPECT_TRUE(book.empty());
}

TEST(PlanBookTest, APlanMayEndBeforeItsLastStep) {
  PlanBook book(Sizes(), kVocabSize);
  ASSERT_TRUE(book.Add(MixedPlan(5)).ok());
  v1::StepResult result = ResultOf(5, 0);
  result.set_last_of_plan(true);  // superseded
  EXPECT_EQ(book.Accept(result), absl::OkStatus());
  EXPECT_TRUE(book.empty());
}

TEST(PlanBookTest, LaterUseOfASlotDoesNotChangeWhatAnEarlierPlanAskedFor) {
  PlanBook book(Sizes(), kVocabSize);
  ASSERT_TRUE(book.Add(MixedPlan(5)).ok());
  v1::StepPlan next;
  next.set_plan(6);
  next.set_run_ahead(1);
  next.add_starts()->set_incarnation(8);  // slot 0, without log-probabilities
  ASSERT_TRUE(book.Add(next).ok());
  EXPECT_EQ(book.Accept(ResultOf(5, 0)), absl::OkStatus());
}

TEST(PlanBookTest, ASlotMakesNoMoreTokensThanItMayOverAllPlans) {
  PlanBook book(Sizes(), kVocabSize);
  ASSERT_TRUE(book.Add(MixedPlan(5)).ok());
  v1::StepPlan next = MixedPlan(6);
  next.clear_starts();  // goes on
  next.clear_prefill();
  ASSERT_TRUE(book.Add(next).ok());
  for (uint32_t step = 0; step < 4; ++step) {
    ASSERT_EQ(book.Accept(ResultOf(5, step)), absl::OkStatus());
  }
  v1::StepResult result = ResultOf(6, 0);  // six of six
  result.mutable_slots(0)->set_num_rows(1);
  v1::SlotResult& slot = *result.mutable_slots(0);
  for (int i = 0; i < 2; ++i) {  // with two more it would be seven
    slot.add_token_ids(1);
    *slot.add_logprobs() = slot.logprobs(0);
    for (int j = 0; j < 2; ++j) *slot.add_top_logprobs() = slot.top_logprobs(j);
  }
  const absl::Status refused = book.Accept(result);
  EXPECT_EQ(Message(refused),
            "slot makes more tokens than it may: slots.token_ids, slot: 0, got: 3, left: 2");
  slot.mutable_token_ids()->RemoveLast();
  slot.mutable_logprobs()->RemoveLast();
  for (int j = 0; j < 2; ++j) slot.mutable_top_logprobs()->RemoveLast();
  EXPECT_EQ(book.Accept(result), absl::OkStatus());  // the refused one has changed nothing
}

TEST(PlanBookTest, ASlotThatHasStoppedSaysNothingMore) {
  PlanBook book(Sizes(), kVocabSize);
  ASSERT_TRUE(book.Add(MixedPlan(5)).ok());
  v1::StepResult first = ResultOf(5, 0);
  first.mutable_slots(0)->set_stop(v1::SLOT_STOP_TOKEN);
  ASSERT_EQ(book.Accept(first), absl::OkStatus());
  v1::StepResult second = ResultOf(5, 1);
  EXPECT_EQ(Message(book.Accept(second)), "slot has stopped before: slots.slot, got: 0");
  second.mutable_slots()->DeleteSubrange(0, 1);
  EXPECT_EQ(book.Accept(second), absl::OkStatus());
}

struct BadResult {
  const char* name;
  const char* field;  // in the message
  std::function<void(v1::StepResult&)> spoil;
};

void PrintTo(const BadResult& bad, std::ostream* out) { *out << bad.name; }

class BadResultTest : public testing::TestWithParam<BadResult> {};

TEST_P(BadResultTest, IsRefusedAndChangesNothing) {
  PlanBook book(Sizes(), kVocabSize);
  ASSERT_TRUE(book.Add(MixedPlan(5)).ok());
  v1::StepResult result = ResultOf(5, 0);
  GetParam().spoil(result);
  const absl::Status status = book.Accept(result);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(Message(status)), testing::HasSubstr(GetParam().field));
  EXPECT_EQ(book.Accept(ResultOf(5, 0)), absl::OkStatus());
}

const BadResult kBadResults[] = {
    {"OtherPlan", "plan", [](v1::StepResult& r) { r.set_plan(6); }},
    {"StepSkipped", "step", [](v1::StepResult& r) { r.set_step(1); }},
    {"SlotThatThereIsNot", "slots.slot",
     [](v1::StepResult& r) { r.mutable_slots(0)->set_slot(3); }},
    {"SlotThatDoesNotRun", "slots.slot",
     [](v1::StepResult& r) { r.mutable_slots(0)->set_slot(2); }},
    {"OtherIncarnation", "slots.slot",
     [](v1::StepResult& r) { r.mutable_slots(1)->set_incarnation(4); }},
    {"SlotTwice", "slots.slot", [](v1::StepResult& r) { *r.add_slots() = r.slots(1); }},
    {"TokenOutsideVocabulary", "slots.token_ids",
     [](v1::StepResult& r) { r.mutable_slots(1)->set_token_ids(0, kVocabSize); }},
    {"TooManyTokens", "slots.token_ids",
     [](v1::StepResult& r) {
       for (int i = 0; i < 16; ++i) r.mutable_slots(1)->add_token_ids(0);
     }},
    {"ChunkEndsElsewhere", "slots.position",
     [](v1::StepResult& r) { r.mutable_slots(0)->set_position(70); }},
    {"PositionBeyondContext", "slots.position",
     [](v1::StepResult& r) { r.mutable_slots(1)->set_position(129); }},
    {"TooManyRows", "slots.num_rows",
     [](v1::StepResult& r) { r.mutable_slots(0)->set_num_rows(6); }},
    {"UnknownStop", "slots.stop",
     [](v1::StepResult& r) { r.mutable_slots(0)->set_stop(static_cast<v1::SlotStop>(77)); }},
    {"LogitsNobodyAskedFor", "slots.logits",
     [](v1::StepResult& r) { r.mutable_slots(0)->set_logits(std::string(400, 'x')); }},
    {"LogprobMissing", "slots.logprobs",
     [](v1::StepResult& r) { r.mutable_slots(0)->clear_logprobs(); }},
    {"LogprobsNobodyAskedFor", "slots.logprobs",
     [](v1::StepResult& r) { r.mutable_slots(1)->add_logprobs(); }},
    {"LogprobOfNoToken", "slots.logprobs",
     [](v1::StepResult& r) { r.mutable_slots(0)->mutable_top_logprobs(0)->set_token_id(100); }},
    {"LogprobIsNan", "slots.logprobs",
     [](v1::StepResult& r) {
       r.mutable_slots(0)->mutable_logprobs(0)->set_logprob(std::nanf(""));
     }},
    {"ErrorTooLong", "slots.error",
     [](v1::StepResult& r) { r.mutable_slots(0)->set_error(std::string(5000, 'x')); }},
    {"IdleTimeIsNegative", "idle_seconds", [](v1::StepResult& r) { r.set_idle_seconds(-1); }},
    {"NegativeTime", "seconds", [](v1::StepResult& r) { r.set_seconds(-1); }},
    {"TimeIsNan", "seconds", [](v1::StepResult& r) { r.set_seconds(std::nan("")); }},
    {"CostIsInfinite", "costs.seconds",
     [](v1::StepResult& r) {
       r.mutable_costs(0)->set_seconds(std::numeric_limits<double>::infinity());
     }},
    {"TooManyCosts", "costs",
     [](v1::StepResult& r) {
       for (int i = 0; i < 64; ++i) r.add_costs();
     }},
    {"CostOfTooManyBytes", "costs.weight_bytes",
     [](v1::StepResult& r) { r.mutable_costs(0)->set_weight_bytes(uint64_t{1} << 63); }},
    {"RankBeyondAnyGroup", "ranks.rank",
     [](v1::StepResult& r) { r.mutable_ranks(1)->set_rank(64); }},
    {"RankTwice", "ranks.rank", [](v1::StepResult& r) { r.mutable_ranks(1)->set_rank(0); }},
    {"RankTimeIsNan", "ranks.seconds",
     [](v1::StepResult& r) { r.mutable_ranks(0)->set_seconds(std::nan("")); }},
    {"RankIdleTimeIsNegative", "ranks.idle_seconds",
     [](v1::StepResult& r) { r.mutable_ranks(0)->set_idle_seconds(-1); }},
    {"TooManyCostsOfARank", "ranks.costs",
     [](v1::StepResult& r) {
       for (int i = 0; i < 64; ++i) r.mutable_ranks(1)->add_costs();
     }},
    {"CostOfARankIsNegative", "ranks.costs.seconds",
     [](v1::StepResult& r) { r.mutable_ranks(1)->mutable_costs(0)->set_seconds(-1); }},
    {"PeerIsTheRankItself", "ranks.received.peer",
     [](v1::StepResult& r) { r.mutable_ranks(1)->mutable_received(0)->set_peer(1); }},
    {"PeerTwice", "ranks.received.peer",
     [](v1::StepResult& r) { r.mutable_ranks(0)->add_received()->set_peer(1); }},
    {"PeerBeyondAnyGroup", "ranks.received.peer",
     [](v1::StepResult& r) { r.mutable_ranks(0)->mutable_received(0)->set_peer(1u << 31); }},
    {"TooManyBytesOfAPeer", "ranks.received.bytes",
     [](v1::StepResult& r) { r.mutable_ranks(0)->mutable_received(0)->set_bytes(~uint64_t{0}); }},
    {"TooManyMessagesOfAPeer", "ranks.received.num_messages",
     [](v1::StepResult& r) {
       r.mutable_ranks(0)->mutable_received(0)->set_num_messages(uint64_t{1} << 49);
     }},
    {"TransferTimeIsInfinite", "ranks.received.transfer_seconds",
     [](v1::StepResult& r) {
       r.mutable_ranks(0)->mutable_received(0)->set_transfer_seconds(
           std::numeric_limits<double>::infinity());
     }},
    {"FlightTimeIsNegative", "ranks.received.flight_seconds",
     [](v1::StepResult& r) { r.mutable_ranks(0)->mutable_received(0)->set_flight_seconds(-1e-9); }},
};

INSTANTIATE_TEST_SUITE_P(PlanBook, BadResultTest, testing::ValuesIn(kBadResults),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(PlanBookTest, RefusesAStepAfterTheLast) {
  PlanBook book(Sizes(), kVocabSize);
  ASSERT_TRUE(book.Add(MixedPlan(5)).ok());
  for (uint32_t step = 0; step < 3; ++step) ASSERT_TRUE(book.Accept(ResultOf(5, step)).ok());
  v1::StepResult last = ResultOf(5, 3);
  last.set_last_of_plan(false);
  EXPECT_EQ(book.Accept(last).code(), absl::StatusCode::kInvalidArgument);
}

TEST(PlanBookTest, RefusesTokensOfAChunkThatDoesNotSample) {
  PlanBook book(Sizes(), kVocabSize);
  v1::StepPlan plan = MixedPlan(5);
  plan.mutable_prefill(0)->set_sample(false);
  ASSERT_TRUE(book.Add(plan).ok());
  EXPECT_EQ(book.Accept(ResultOf(5, 0)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(PlanBookTest, AcceptsTheLogitsThatWereAskedForAndNoOthers) {
  PlanBook book(Sizes(), kVocabSize);
  v1::StepPlan plan = MixedPlan(5);
  plan.mutable_prefill(0)->set_return_all_logits(true);
  ASSERT_TRUE(book.Add(plan).ok());
  v1::StepResult result = ResultOf(5, 0);
  result.mutable_slots(0)->set_logits(std::string(5 * kVocabSize * 4 - 1, 'x'));
  EXPECT_FALSE(book.Accept(result).ok());
  result.mutable_slots(0)->set_logits(std::string(5 * kVocabSize * 4, 'x'));
  EXPECT_TRUE(book.Accept(result).ok());
}

TEST(PlanBookTest, RefusesAnyResultWithoutAPlan) {
  PlanBook book(Sizes(), kVocabSize);
  EXPECT_FALSE(book.Accept(ResultOf(5, 0)).ok());
  ASSERT_TRUE(book.Add(MixedPlan(5)).ok());
  book.Clear();
  EXPECT_FALSE(book.Accept(ResultOf(5, 0)).ok());
  EXPECT_TRUE(book.Add(MixedPlan(1)).ok());  // numbers begin anew
}

TEST(PlanBookTest, RefusesOurOwnMistakes) {
  PlanBook book(Sizes(), kVocabSize);
  ASSERT_TRUE(book.Add(MixedPlan(5)).ok());
  EXPECT_FALSE(book.Add(MixedPlan(5)).ok());
  v1::StepPlan plan = MixedPlan(6);
  plan.mutable_decode(0)->set_slot(3);
  EXPECT_FALSE(book.Add(plan).ok());
  plan = MixedPlan(6);
  plan.set_run_ahead(0);
  EXPECT_FALSE(book.Add(plan).ok());
}

}  // namespace
}  // namespace switchyard::coordinator
