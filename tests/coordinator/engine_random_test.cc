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

TEST_P(EngineRandomTest, EveryGenerationGetsItsOwnTokens) {
  std::mt19937 random(GetParam());
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % (high - low + 1));
  };
  auto worker_options = Harness::WorkerOptions(pick(1, 5), pick(16, 40), pick(0, 6));
  worker_options.capacity.max_step_rows = pick(70, 300);
  worker_options.eos_period = pick(0, 1) * 50;
  Harness h(worker_options, {.run_ahead = pick(1, 40)});

  constexpr int kGenerations = 60;
  std::vector<GenerationRequest> requests;
  std::vector<uint64_t> ids;
  for (int i = 0; i < kGenerations; ++i) {
    // Few different beginnings, so that prefixes are often shared.
    auto prompt = Harness::Prompt(pick(1, 400), pick(0, 2));
    const auto tail = Harness::Prompt(pick(0, 80), pick(0, 50));
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    GenerationRequest request = Harness::Request(prompt, pick(1, 120));
    const std::string text = h.Text(h.Expected(prompt, 30));
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
    const auto expected = h.Expected(requests[i].prompt, *requests[i].max_tokens);
    const std::string text = h.Text(expected);
    ASSERT_LE(c.token_ids.size(), expected.size());
    EXPECT_TRUE(std::equal(c.token_ids.begin(), c.token_ids.end(), expected.begin()));
    EXPECT_EQ(c.num_finished, 1);
    if (c.last.reason == FinishReason::kStopSequence) {
      EXPECT_EQ(c.text, text.substr(0, text.find(requests[i].stop[0])));
    } else if (c.last.reason != FinishReason::kCancelled) {
      EXPECT_EQ(c.token_ids, expected);
      EXPECT_EQ(c.text, text);
    }
    EXPECT_EQ(c.last.usage.cached_tokens % kPageTokens, 0);
    EXPECT_LT(c.last.usage.cached_tokens, c.last.usage.prompt_tokens);
  }
  const EngineStats stats = h.engine().stats();
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_THAT(h.worker().violations(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Seeds, EngineRandomTest, ::testing::Range(0, 40));

}  // namespace
}  // namespace switchyard::coordinator
