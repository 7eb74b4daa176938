#include "coordinator/engine.h"

#include <chrono>
#include <future>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine_harness.h"

namespace switchyard::coordinator {
namespace {

using ::testing::IsEmpty;

using Harness = EngineHarness;

TEST(EngineTest, DeliversWhatTheWorkerSamples) {
  Harness h(Harness::WorkerOptions(2, 64, 4), {});
  const auto prompt = Harness::Prompt(100, 1);
  const Collected c = h.Run(Harness::Request(prompt, 40), 0);
  EXPECT_EQ(c.token_ids, h.Expected(prompt, 40));
  EXPECT_EQ(c.text, h.Text(c.token_ids));
  EXPECT_EQ(c.num_started, 1);
  EXPECT_EQ(c.num_finished, 1);
  EXPECT_EQ(c.last.reason, FinishReason::kMaxTokens);
  EXPECT_EQ(c.last.usage.prompt_tokens, 100);
  EXPECT_EQ(c.last.usage.cached_tokens, 0);
  EXPECT_EQ(c.last.usage.completion_tokens, 40);
  EXPECT_GE(c.last.timings.ttft_seconds, c.last.timings.queue_seconds);
  EXPECT_THAT(h.worker().violations(), IsEmpty());
}

TEST(EngineTest, EndTokenEndsTheTextAndIsNotPartOfIt) {
  auto options = Harness::WorkerOptions(1, 64, 4);
  options.eos_period = 20;
  Harness h(options, {});
  const auto prompt = Harness::Prompt(10, 3);
  const auto expected = h.Expected(prompt, 500);
  ASSERT_LT(expected.size(), 500u);
  const Collected c = h.Run(Harness::Request(prompt, 500), 0);
  EXPECT_EQ(c.token_ids, expected);
  EXPECT_EQ(c.last.reason, FinishReason::kStopToken);
  EXPECT_EQ(c.text, h.Text({expected.begin(), expected.end() - 1}));

  GenerationRequest through = Harness::Request(prompt, 60);
  through.ignore_eos = true;
  EXPECT_EQ(h.Run(through, 1).last.reason, FinishReason::kMaxTokens);
}

TEST(EngineTest, StopStringIsCutOutOverTokenBorders) {
  Harness h(Harness::WorkerOptions(1, 64, 4), {});
  const auto prompt = Harness::Prompt(70, 5);
  const std::string text = h.Text(h.Expected(prompt, 40));
  GenerationRequest request = Harness::Request(prompt, 40);
  request.stop = {text.substr(9, 3), "never there"};
  const Collected c = h.Run(request, 0);
  EXPECT_EQ(c.text, text.substr(0, text.find(request.stop[0])));
  EXPECT_EQ(c.last.reason, FinishReason::kStopSequence);
  EXPECT_EQ(c.last.stop_sequence, request.stop[0]);

  request.stop = {text.substr(37) + "#"};  // begins at the end but never completes
  const Collected whole = h.Run(request, 1);
  EXPECT_EQ(whole.text, text);
  EXPECT_EQ(whole.last.reason, FinishReason::kMaxTokens);
  EXPECT_THAT(h.worker().violations(), IsEmpty());
}

TEST(EngineTest, StopTokenIdsOfTheRequestCount) {
  Harness h(Harness::WorkerOptions(1, 64, 4), {});
  const auto prompt = Harness::Prompt(20, 6);
  const auto expected = h.Expected(prompt, 40);
  GenerationRequest request = Harness::Request(prompt, 40);
  request.stop_token_ids = {expected[7]};
  const Collected c = h.Run(request, 0);
  EXPECT_EQ(c.last.reason, FinishReason::kStopToken);
  EXPECT_EQ(c.token_ids.back(), expected[7]);
  EXPECT_LE(c.token_ids.size(), 8u);
}

TEST(EngineTest, ContextEndsAGenerationWithoutLimit) {
  Harness h(Harness::WorkerOptions(1, 16, 0), {});
  const Collected c = h.Run(Harness::Request(Harness::Prompt(1018, 1), std::nullopt), 0);
  EXPECT_EQ(c.token_ids.size(), 6u);
  EXPECT_EQ(c.last.reason, FinishReason::kContextFull);
  EXPECT_FALSE(h.Start(Harness::Request(Harness::Prompt(1024, 1), std::nullopt), 1).ok());
  EXPECT_FALSE(h.Start(Harness::Request(Harness::Prompt(1020, 1), 5), 1).ok());
  EXPECT_EQ(h.Run(Harness::Request(Harness::Prompt(1020, 1), 4), 2).last.reason,
            FinishReason::kMaxTokens);
  EXPECT_THAT(h.worker().violations(), IsEmpty());
}

TEST(EngineTest, SecondTurnReusesTheFirst) {
  Harness h(Harness::WorkerOptions(2, 64, 8), {});
  const auto prompt = Harness::Prompt(300, 1);
  const Collected cold = h.Run(Harness::Request(prompt, 20), 0);
  const int64_t rows = h.worker().num_computed_rows();

  const Collected hit = h.Run(Harness::Request(prompt, 20), 1);
  EXPECT_EQ(hit.token_ids, cold.token_ids);
  EXPECT_EQ(hit.last.usage.cached_tokens, 256);
  EXPECT_LE(h.worker().num_computed_rows() - rows, 300 - 256 + 20);

  auto longer = prompt;
  longer.insert(longer.end(), cold.token_ids.begin(), cold.token_ids.end());
  const auto tail = Harness::Prompt(200, 9);
  longer.insert(longer.end(), tail.begin(), tail.end());
  const Collected next = h.Run(Harness::Request(longer, 20), 2);
  EXPECT_EQ(next.token_ids, h.Expected(longer, 20));
  EXPECT_EQ(next.last.usage.cached_tokens, 256);

  GenerationRequest without = Harness::Request(prompt, 20);
  without.reuse_prefix = false;
  EXPECT_EQ(h.Run(without, 3).last.usage.cached_tokens, 0);
  GenerationRequest salted = Harness::Request(prompt, 20);
  salted.cache_salt = "other";
  EXPECT_EQ(h.Run(salted, 4).last.usage.cached_tokens, 0);
  EXPECT_THAT(h.worker().violations(), IsEmpty());
}

TEST(EngineTest, ReportsProgressOfThePrompt) {
  Harness h(Harness::WorkerOptions(1, 64, 0), {});
  const Collected c = h.Run(Harness::Request(Harness::Prompt(700, 1), 2), 0);
  // A step has 256 rows here, and the last page border of the prompt is a chunk's end.
  EXPECT_THAT(c.progress, ::testing::ElementsAre(0, 256, 512, 640, 700, 700, 700));
}

TEST(EngineTest, MessageBordersMakeCheckpoints) {
  Harness h(Harness::WorkerOptions(2, 64, 8), {});
  const auto system = Harness::Prompt(200, 1);
  auto first = system, second = system;
  const auto a = Harness::Prompt(150, 2), b = Harness::Prompt(150, 3);
  first.insert(first.end(), a.begin(), a.end());
  second.insert(second.end(), b.begin(), b.end());
  GenerationRequest request = Harness::Request(first, 5);
  request.message_borders = {200};
  h.Run(request, 0);
  EXPECT_EQ(h.Run(Harness::Request(second, 5), 1).last.usage.cached_tokens, 192);
  EXPECT_THAT(h.worker().violations(), IsEmpty());
}

TEST(EngineTest, CancelEndsWaitingAndRunningGenerations) {
  auto options = Harness::WorkerOptions(1, 64, 4);
  options.hold_at_step = 8;  // so that nothing ends by itself before it is cancelled
  Harness h(options, {});
  const auto running = h.Start(Harness::Request(Harness::Prompt(10, 1), 900), 0);
  const auto waiting = h.Start(Harness::Request(Harness::Prompt(10, 2), 900), 1);
  ASSERT_TRUE(running.ok() && waiting.ok());
  h.WaitForTokens(0, 3);
  h.engine().Cancel(*waiting);
  EXPECT_EQ(h.Wait(1).last.reason, FinishReason::kCancelled);
  h.engine().Cancel(*running);
  EXPECT_EQ(h.Wait(0).last.reason, FinishReason::kCancelled);
  h.engine().Cancel(*running);
  h.engine().Cancel(12345);
  h.worker().Release();
  EXPECT_EQ(h.engine().stats().num_running, 0);
  EXPECT_EQ(h.Run(Harness::Request(Harness::Prompt(10, 3), 5), 2).token_ids,
            h.Expected(Harness::Prompt(10, 3), 5));
  EXPECT_THAT(h.worker().violations(), IsEmpty());
}

TEST(EngineTest, FullQueueRefuses) {
  auto options = Harness::WorkerOptions(1, 64, 4);
  options.hold_at_step = 2;  // nothing ends meanwhile
  Harness h(options, {.max_waiting = 2});
  std::vector<absl::StatusOr<uint64_t>> ids;
  for (int i = 0; i < 8; ++i) {
    ids.push_back(h.Start(Harness::Request(Harness::Prompt(10, i), 1000), i));
  }
  EXPECT_EQ(ids.back().status().code(), absl::StatusCode::kResourceExhausted);
  for (const auto& id : ids) {
    if (id.ok()) h.engine().Cancel(*id);
  }
}

TEST(EngineTest, StopIsNotLostWhileAFailureIsDelivered) {
  auto options = Harness::WorkerOptions(1, 64, 0);
  options.fail_at_step = 0;
  const model::Tokenizer tokenizer = testing::ByteTokenizer();
  auto engine = std::make_unique<Engine>(std::make_unique<testing::FakeWorker>(options), tokenizer,
                                         EngineOptions{});
  std::promise<void> failed;
  std::promise<void> nothing;
  const auto id = engine->Start(Harness::Request(Harness::Prompt(20, 1), 10),
                                [&](const GenerationEvent& event) {
                                  if (!event.finished) return;
                                  failed.set_value();
                                  // Holds the engine's thread in the middle of the failure until
                                  // the stop below has surely arrived; nothing can be seen of that
                                  // from outside, and a shorter wait would only see less.
                                  nothing.get_future().wait_for(std::chrono::milliseconds(50));
                                });
  ASSERT_TRUE(id.ok());
  failed.get_future().wait();
  engine.reset();  // would wait for ever
}

TEST(EngineTest, FailureOfTheWorkerEndsEverything) {
  auto options = Harness::WorkerOptions(1, 64, 4);
  options.fail_at_step = 5;
  options.hold_at_step = 1;
  Harness h(options, {});
  ASSERT_TRUE(h.Start(Harness::Request(Harness::Prompt(10, 1), 500), 0).ok());
  ASSERT_TRUE(h.Start(Harness::Request(Harness::Prompt(10, 2), 500), 1).ok());
  h.worker().Release();
  EXPECT_EQ(h.Wait(0).last.reason, FinishReason::kFailed);
  EXPECT_EQ(h.Wait(1).last.reason, FinishReason::kFailed);
  EXPECT_NE(std::string(h.Wait(1).last.error.message()).find("made to fail"), std::string::npos);
  EXPECT_EQ(h.Start(Harness::Request(Harness::Prompt(10, 3), 5), 2).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(EngineTest, DestructionEndsGenerations) {
  auto h = std::make_unique<Harness>(Harness::WorkerOptions(1, 64, 4), EngineOptions{});
  int num_finished = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(h->engine()
                    .Start(Harness::Request(Harness::Prompt(10, i), 1000),
                           [&](const GenerationEvent& event) { num_finished += event.finished; })
                    .ok());
  }
  h.reset();
  EXPECT_EQ(num_finished, 3);
}

// A sequence that ends by a stop string has overshot; what it still writes must not reach the pages
// of the sequence that gets them next. The fake checks the contents of every page it reads.
TEST(EngineTest, PagesOfAnEndedSequenceAreSafeToReuse) {
  Harness h(Harness::WorkerOptions(2, 8, 0), {.run_ahead = 64});
  for (int i = 0; i < 60; ++i) {
    const auto prompt = Harness::Prompt(60, i);
    GenerationRequest request = Harness::Request(prompt, 180);
    request.stop = {h.Text(h.Expected(prompt, 6)).substr(4, 2)};
    ASSERT_TRUE(h.Start(request, i).ok());
  }
  for (int i = 0; i < 60; ++i) EXPECT_EQ(h.Wait(i).last.reason, FinishReason::kStopSequence);
  EXPECT_THAT(h.worker().violations(), IsEmpty());
}

TEST(EngineTest, RunAheadSavesPlans) {
  Harness h(Harness::WorkerOptions(1, 64, 0), {.run_ahead = 32});
  h.Run(Harness::Request(Harness::Prompt(10, 1), 320), 0);
  // One plan for the prompt, then one per half of a run-ahead; some slack for late results.
  EXPECT_LE(h.engine().stats().num_plans, 1 + 320 / 16 + 8);
}

}  // namespace
}  // namespace switchyard::coordinator
