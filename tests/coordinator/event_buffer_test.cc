#include "coordinator/event_buffer.h"

#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::coordinator {
namespace {

using ::testing::ElementsAre;

GenerationEvent TextEvent(std::string text, std::vector<int32_t> token_ids = {}) {
  GenerationEvent event;
  event.text = std::move(text);
  event.token_ids = std::move(token_ids);
  return event;
}

GenerationEvent LastEvent(FinishReason reason) {
  GenerationEvent event;
  event.finished = true;
  event.reason = reason;
  return event;
}

TEST(EventBufferTest, IsEmptyAtFirstAndAfterEachTake) {
  EventBuffer buffer(100);
  EXPECT_FALSE(buffer.Take().has_value());
  EXPECT_TRUE(buffer.Push(TextEvent("a")));
  EXPECT_TRUE(buffer.Take().has_value());
  EXPECT_FALSE(buffer.Take().has_value());
}

TEST(EventBufferTest, MergesWhatWaits) {
  EventBuffer buffer(1000);
  GenerationEvent started;
  started.started = true;
  started.usage.prompt_tokens = 5;
  buffer.Push(started);
  GenerationEvent first = TextEvent("Hel", {1, 2});
  first.logprobs.resize(2);
  first.logits = {0.5f};
  first.usage = {.prompt_tokens = 5, .completion_tokens = 2};
  buffer.Push(first);
  GenerationEvent second = TextEvent("lo", {3});
  second.logprobs.resize(1);
  second.logprobs[0].token_id = 3;
  second.logits = {0.25f};
  second.usage = {.prompt_tokens = 5, .completion_tokens = 3};
  second.timings.decode_seconds = 2;
  second.num_prefilled = 5;
  buffer.Push(second);

  const auto event = buffer.Take();
  ASSERT_TRUE(event.has_value());
  EXPECT_TRUE(event->started);
  EXPECT_FALSE(event->finished);
  EXPECT_EQ(event->text, "Hello");
  EXPECT_THAT(event->token_ids, ElementsAre(1, 2, 3));
  ASSERT_EQ(event->logprobs.size(), 3u);
  EXPECT_EQ(event->logprobs[2].token_id, 3);
  EXPECT_THAT(event->logits, ElementsAre(0.5f, 0.25f));
  EXPECT_EQ(event->usage.completion_tokens, 3);
  EXPECT_EQ(event->timings.decode_seconds, 2);
  EXPECT_EQ(event->num_prefilled, 5);
}

TEST(EventBufferTest, LastEventBringsWhatWaited) {
  EventBuffer buffer(100);
  buffer.Push(TextEvent("abc", {1}));
  GenerationEvent last = LastEvent(FinishReason::kStopSequence);
  last.stop_sequence = "x";
  last.text = "d";
  EXPECT_TRUE(buffer.Push(last));
  const auto event = buffer.Take();
  EXPECT_EQ(event->text, "abcd");
  EXPECT_TRUE(event->finished);
  EXPECT_EQ(event->stop_sequence, "x");
  EXPECT_FALSE(buffer.Take().has_value());
}

TEST(EventBufferTest, AddsCostsButKeepsTotalsOfTheLastEventApart) {
  EventBuffer buffer(100);
  GenerationEvent step = TextEvent("a");
  step.costs.num_steps = 1;
  step.costs.seconds = 0.5;
  buffer.Push(step);
  buffer.Push(step);
  GenerationEvent last = LastEvent(FinishReason::kMaxTokens);
  last.costs.num_steps = 9;
  buffer.Push(last);

  const auto steps = buffer.Take();
  EXPECT_EQ(steps->costs.num_steps, 2);
  EXPECT_EQ(steps->costs.seconds, 1.0);
  EXPECT_FALSE(steps->finished);
  const auto totals = buffer.Take();
  ASSERT_TRUE(totals.has_value());
  EXPECT_EQ(totals->costs.num_steps, 9);
  EXPECT_TRUE(totals->finished);
  EXPECT_FALSE(buffer.Take().has_value());
}

TEST(EventBufferTest, FullBufferTakesNothingButTheLastEvent) {
  EventBuffer buffer(10);
  EXPECT_TRUE(buffer.Push(TextEvent("0123456789")));
  EXPECT_FALSE(buffer.Push(TextEvent("a")));
  // Room again, but the stream has a hole now.
  EXPECT_EQ(buffer.Take()->text, "0123456789");
  EXPECT_FALSE(buffer.Push(TextEvent("b")));
  EXPECT_FALSE(buffer.Take().has_value());
  GenerationEvent last = LastEvent(FinishReason::kCancelled);
  last.text = "c";
  EXPECT_FALSE(buffer.Push(last));
  const auto event = buffer.Take();
  ASSERT_TRUE(event.has_value());
  EXPECT_TRUE(event->finished);
  EXPECT_EQ(event->text, "");
}

TEST(EventBufferTest, TheLastEventMayGoOverTheLimit) {
  // Nothing comes after it, so dropping its text would leave a hole that nobody is told of.
  EventBuffer buffer(10);
  EXPECT_TRUE(buffer.Push(TextEvent("0123456789")));
  GenerationEvent last = LastEvent(FinishReason::kMaxTokens);
  last.text = "a";
  EXPECT_TRUE(buffer.Push(last));
  EXPECT_EQ(buffer.Take()->text, "0123456789a");
}

TEST(EventBufferTest, TokensAndLogprobsCountAsBytes) {
  EventBuffer tokens(15);
  EXPECT_TRUE(tokens.Push(TextEvent("", {1, 2, 3})));
  EXPECT_FALSE(tokens.Push(TextEvent("", {4})));
  EventBuffer logprobs(100);
  GenerationEvent event;
  event.logprobs.resize(1);
  event.logprobs[0].top.resize(20);
  EXPECT_FALSE(logprobs.Push(event));
}

TEST(EventBufferTest, TakingMakesRoom) {
  EventBuffer buffer(10);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(buffer.Push(TextEvent("0123456789")));
    EXPECT_EQ(buffer.Take()->text.size(), 10u);
  }
}

TEST(EventBufferTest, NothingIsLostOrReorderedBetweenThreads) {
  constexpr int kNumEvents = 20000;
  EventBuffer buffer(size_t{1} << 24);
  std::thread writer([&] {
    for (int i = 0; i < kNumEvents; ++i) buffer.Push(TextEvent("", {i}));
    buffer.Push(LastEvent(FinishReason::kMaxTokens));
  });
  int expected = 0;
  for (bool finished = false; !finished;) {
    const auto event = buffer.Take();
    if (!event) {
      std::this_thread::yield();
      continue;
    }
    for (int32_t id : event->token_ids) ASSERT_EQ(id, expected++);
    finished = event->finished;
  }
  writer.join();
  EXPECT_EQ(expected, kNumEvents);
}

}  // namespace
}  // namespace switchyard::coordinator
