// Many generations with random lengths, prefixes, stops and cancellations on few slots and pages.
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "engine_harness.h"

namespace switchyard::coordinator {
namespace {

using ::testing::IsEmpty;
using Harness = EngineHarness;

class EngineRandomTest : public ::testing::TestWithParam<int> {};

// Runs many generations, cancels some, and compares each with what it must give.
void RunGenerations(Harness& h, std::mt19937& random) {
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % (high - low + 1));
  };
  constexpr int kGenerations = 60;
  std::vector<GenerationRequest> requests;
  std::vector<uint64_t> ids;
  for (int i = 0; i < kGenerations; ++i) {
    // Few different beginnings, so that prefixes are often shared.
    auto prompt = Harness::Prompt(pick(1, 400), pick(0, 2));
    const auto tail = Harness::Prompt(pick(0, 80), pick(0, 50));
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    GenerationRequest request = Harness::Request(prompt, pick(1, 120));
    if (pick(0, 2) == 0) request.min_tokens = pick(0, *request.max_tokens);
    const std::string text = h.Text(h.Expected(prompt, 30, request.min_tokens));
    if (pick(0, 3) == 0 && text.size() > 10) request.stop = {text.substr(pick(0, 8), 2)};
    if (pick(0, 2) == 0) request.message_borders = {pick(0, static_cast<int>(prompt.size()))};
    const auto id = h.Start(request, i);
    ASSERT_TRUE(id.ok()) << id.status();
    requests.push_back(request);
    ids.push_back(*id);
    if (pick(0, 5) == 0) h.engine().Cancel(ids[pick(0, i)]);
  }
  for (int i = 0; i < kGenerations; ++i) {
    const Collected c = h.Wait(i);
    const auto expected =
        h.Expected(requests[i].prompt, *requests[i].max_tokens, requests[i].min_tokens);
    const std::string text = h.Text(expected);
    ASSERT_LE(c.token_ids.size(), expected.size());
    EXPECT_TRUE(std::equal(c.token_ids.begin(), c.token_ids.end(), expected.begin()));
    EXPECT_LE(c.num_started, 1);
    EXPECT_EQ(c.num_finished, 1);
    EXPECT_NE(c.last.reason, FinishReason::kFailed) << c.last.error;
    if (c.last.reason == FinishReason::kStopSequence) {
      EXPECT_EQ(c.text, text.substr(0, text.find(requests[i].stop[0])));
    } else if (c.last.reason != FinishReason::kCancelled) {
      EXPECT_EQ(c.token_ids, expected);
      EXPECT_EQ(c.text, text);
    }
    EXPECT_EQ(c.last.usage.cached_tokens % kPageTokens, 0);
    EXPECT_LT(c.last.usage.cached_tokens, c.last.usage.prompt_tokens);
    EXPECT_EQ(c.last.usage.completion_tokens, static_cast<int>(c.token_ids.size()));
  }
  EXPECT_EQ(h.engine().CheckInvariants(), absl::OkStatus());
  const EngineStats stats = h.engine().stats();
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_waiting, 0);
  int64_t num_finished = 0;
  for (const int64_t count : stats.num_finished) num_finished += count;
  EXPECT_EQ(num_finished, kGenerations);
  if (stats.num_checkpoints == 0) {
    EXPECT_EQ(stats.num_free_pages, stats.num_pages);
  }
  EXPECT_THAT(h.worker().violations(), IsEmpty());
}

testing::FakeWorker::Options RandomWorker(std::mt19937& random) {
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % (high - low + 1));
  };
  auto options = Harness::WorkerOptions(pick(1, 5), pick(16, 40), pick(0, 6));
  options.capacity.max_step_rows = pick(70, 300);
  options.capacity.pipeline_depth = pick(1, 4);
  options.eos_period = pick(0, 1) * 50;
  return options;
}

TEST_P(EngineRandomTest, EveryGenerationGetsItsOwnTokens) {
  std::mt19937 random(GetParam());
  const auto worker_options = RandomWorker(random);
  Harness h(worker_options, {.run_ahead = 1 + static_cast<int>(random() % 40)});
  RunGenerations(h, random);
  EXPECT_EQ(h.engine().stats().num_losses, 0);
}

// The state is lost at random steps, with or without their results. Texts are those of an
// undisturbed run, whole and without repetition.
TEST_P(EngineRandomTest, LossesChangeNoText) {
  std::mt19937 random(1000 + GetParam());
  auto worker_options = RandomWorker(random);
  constexpr int kLosses = 30;
  int64_t step = 0;
  for (int i = 0; i < kLosses; ++i) {
    step += static_cast<int64_t>(random() % 12);
    worker_options.losses[step] = random() % 2 == 0;
  }
  Harness h(worker_options,
            {.run_ahead = 1 + static_cast<int>(random() % 40), .max_replays = kLosses});
  RunGenerations(h, random);
  EXPECT_GT(h.engine().stats().num_losses, 0);
  EXPECT_GT(h.engine().stats().num_replays, 0);
}

INSTANTIATE_TEST_SUITE_P(Seeds, EngineRandomTest, ::testing::Range(0, 40));

}  // namespace
}  // namespace switchyard::coordinator
