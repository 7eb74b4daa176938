#include "worker/sampler.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/philox.h"

namespace switchyard::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(PhiloxTest, GivesTheKnownAnswers) {
  // The generator's published known-answer vectors: zeros, ones, and digits of pi.
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_THAT(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(
      Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(PhiloxTest, DrawsAreUniformOverPositionsAndOverSeeds) {
  // The mean of n uniform draws has deviation 1 / sqrt(12 n): 0.0029 here; five of them.
  constexpr int kDraws = 10000;
  double over_positions = 0, over_seeds = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    over_positions += UniformDraw(42, i);
    over_seeds += UniformDraw(i, 42);
  }
  EXPECT_NEAR(over_positions / kDraws, 0.5, 5 * 0.0029);
  EXPECT_NEAR(over_seeds / kDraws, 0.5, 5 * 0.0029);
}

// Samples at position 0 with the given fields set.
class SamplerTest : public testing::Test {
 protected:
  SamplingRule Rule(const v1::SamplingParams& params, int64_t vocab_size) {
    absl::StatusOr<SamplingRule> rule = MakeSamplingRule(params, vocab_size);
    EXPECT_TRUE(rule.ok()) << rule.status();
    return *rule;
  }

  int32_t Sample(const std::vector<float>& logits, const v1::SamplingParams& params,
                 int64_t position = 0, const TokenCounts* counts = nullptr,
                 std::vector<int32_t> never_sampled = {}) {
    const auto size = static_cast<int64_t>(logits.size());
    Sampler sampler(size, never_sampled);
    absl::StatusOr<int32_t> token = sampler.Sample(logits, Rule(params, size), counts, position);
    EXPECT_TRUE(token.ok()) << token.status();
    return token.value_or(-1);
  }

  // How often each token is drawn at `num_draws` positions.
  std::map<int32_t, int> Draw(const std::vector<float>& logits, const v1::SamplingParams& params,
                              int num_draws) {
    Sampler sampler(static_cast<int64_t>(logits.size()), {});
    const SamplingRule rule = Rule(params, static_cast<int64_t>(logits.size()));
    std::map<int32_t, int> counts;
    for (int i = 0; i < num_draws; ++i) ++counts[*sampler.Sample(logits, rule, nullptr, i)];
    return counts;
  }
};

v1::SamplingParams Temperature(float temperature) {
  v1::SamplingParams params;
  params.set_temperature(temperature);
  return params;
}

TEST_F(SamplerTest, GreedyTakesTheLowerIdOnATie) {
  EXPECT_EQ(Sample({1, 3, 3, 2}, {}), 1);
  EXPECT_EQ(Sample({1, 3, 3, 2}, Temperature(0)), 1);
  EXPECT_EQ(Sample({-5, -7, -5}, {}), 0);
}

TEST_F(SamplerTest, DrawsWithTheProbabilitiesOfTheTemperature) {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(4.0f), -100};
  constexpr int kDraws = 20000;
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    double total = 0;
    for (const float logit : logits) total += std::exp(logit / temperature);
    std::map<int32_t, int> counts = Draw(logits, Temperature(temperature), kDraws);
    for (int32_t i = 0; i < 4; ++i) {
      const double p = std::exp(logits[static_cast<size_t>(i)] / temperature) / total;
      // Five deviations of a binomial count.
      EXPECT_NEAR(counts[i], p * kDraws, 5 * std::sqrt(p * (1 - p) * kDraws) + 1e-9)
          << "token " << i << " at " << temperature;
    }
  }
}

TEST_F(SamplerTest, DrawDependsOnSeedAndPositionOnly) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> logits(1000);
  for (float& logit : logits) logit = normal(random);
  v1::SamplingParams params = Temperature(1);
  params.set_seed(42);
  Sampler sampler(1000, {});
  const SamplingRule rule = Rule(params, 1000);
  std::vector<int32_t> forwards, backwards(50);
  for (int i = 0; i < 50; ++i) forwards.push_back(*sampler.Sample(logits, rule, nullptr, i));
  for (int i = 49; i >= 0; --i) {
    Sampler other(1000, {});
    backwards[static_cast<size_t>(i)] = *other.Sample(logits, rule, nullptr, i);
  }
  EXPECT_EQ(forwards, backwards);
  EXPECT_GT(std::set<int32_t>(forwards.begin(), forwards.end()).size(), 25u);
  params.set_seed(43);
  const SamplingRule other_seed = Rule(params, 1000);
  std::vector<int32_t> others;
  for (int i = 0; i < 50; ++i) others.push_back(*sampler.Sample(logits, other_seed, nullptr, i));
  EXPECT_NE(forwards, others);
}

TEST_F(SamplerTest, TopKKeepsTheMostLikelyAndTheLowerIdOnATie) {
  v1::SamplingParams params = Temperature(1);
  params.set_top_k(3);
  std::map<int32_t, int> counts = Draw({1, 2, 3, 2, 2}, params, 1000);
  EXPECT_EQ(counts.size(), 3u);
  EXPECT_GT(counts[2], 0);
  EXPECT_GT(counts[1], 0);
  EXPECT_GT(counts[3], 0);
  params.set_top_k(1);
  EXPECT_EQ(Draw({1, 2, 3, 3, 2}, params, 100), (std::map<int32_t, int>{{2, 100}}));
}

TEST_F(SamplerTest, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 1/2, 1/4, 1/8, 1/8.
  const std::vector<float> logits = {std::log(0.125f), std::log(0.5f), std::log(0.25f),
                                     std::log(0.125f)};
  const auto drawn = [&](float top_p) {
    v1::SamplingParams params = Temperature(1);
    params.set_top_p(top_p);
    std::set<int32_t> ids;
    for (const auto& [id, count] : Draw(logits, params, 500)) ids.insert(id);
    return ids;
  };
  EXPECT_EQ(drawn(0.49f), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn(0.51f), (std::set<int32_t>{1, 2}));
  EXPECT_EQ(drawn(0.80f), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(drawn(1.00f), (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(drawn(1e-30f), (std::set<int32_t>{1}));
}

TEST_F(SamplerTest, TopPOverAFlatVocabularyKeepsItsShare) {
  // Larger than the fronts that are sorted step by step.
  const std::vector<float> logits(5000, 1.0f);
  v1::SamplingParams params = Temperature(1);
  params.set_top_p(0.5f);
  int32_t largest = 0;
  for (const auto& [id, count] : Draw(logits, params, 300)) largest = std::max(largest, id);
  EXPECT_LT(largest, 2501);
  EXPECT_GT(largest, 2300);  // 300 draws miss the last 200 of 2500 with (1 - 0.08)^300 = 1e-11
}

TEST_F(SamplerTest, MinPComparesWithTheMostLikely) {
  v1::SamplingParams params = Temperature(1);
  params.set_min_p(0.2f);
  const std::map<int32_t, int> counts =
      Draw({std::log(0.19f), 0, std::log(0.21f), -kInfinity}, params, 500);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts.count(1), 1u);
  EXPECT_EQ(counts.count(2), 1u);
}

TEST_F(SamplerTest, BiasMovesTheChoiceButNeverToAMaskedId) {
  v1::SamplingParams params;
  (*params.mutable_logit_bias())[2] = 100;
  EXPECT_EQ(Sample({5, 1, 0}, params), 2);
  EXPECT_EQ(Sample({5, 1, 0}, params, 0, nullptr, {2}), 0);
  (*params.mutable_logit_bias())[0] = std::numeric_limits<float>::lowest();
  EXPECT_EQ(Sample({5, 1, 0}, params, 0, nullptr, {2}), 1);
  params.set_temperature(1);
  EXPECT_EQ(Sample({5, 1, 0}, params, 0, nullptr, {2}), 1);
}

TEST_F(SamplerTest, BiasThatOverflowsStillChooses) {
  v1::SamplingParams params = Temperature(1);
  (*params.mutable_logit_bias())[1] = std::numeric_limits<float>::max();
  EXPECT_EQ(Sample({0, std::numeric_limits<float>::max(), 3}, params), 1);
}

TEST_F(SamplerTest, ValuesThatOverflowDownwardsMaskNothing) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  TokenCounts counts;
  counts.Reset(2);
  v1::SamplingParams params;
  params.set_repetition_penalty(kLargest);
  for (const int32_t token_id : {0, 1}) {
    counts.Add(token_id, /*is_output=*/false);
    (*params.mutable_logit_bias())[static_cast<uint32_t>(token_id)] = -kLargest;
  }
  EXPECT_EQ(Sample({-kLargest, -2}, params, 0, &counts), 0);  // both as low as can be
  EXPECT_EQ(Sample({-2, -2}, params, 0, &counts, {0}), 1);
}

TEST_F(SamplerTest, PenaltiesTellPromptFromOutput) {
  TokenCounts counts;
  counts.Reset(4);
  counts.Add(0, /*is_output=*/false);
  counts.Add(1, /*is_output=*/true);
  counts.Add(1, /*is_output=*/true);
  v1::SamplingParams params;
  params.set_repetition_penalty(2);  // divides 3 and 2.9 by two
  EXPECT_EQ(Sample({3, 2.9f, 2, 1.6f}, params, 0, &counts), 2);
  EXPECT_EQ(Sample({-1, -1, -1.9f, -3}, params, 0, &counts), 2);  // -1 becomes -2
  params.set_repetition_penalty(1);
  params.set_presence_penalty(1);  // output only, once
  EXPECT_EQ(Sample({3, 3.5f, 0, 0}, params, 0, &counts), 0);
  EXPECT_EQ(Sample({2, 3.5f, 0, 0}, params, 0, &counts), 1);
  params.set_presence_penalty(0);
  params.set_frequency_penalty(1);  // output only, twice
  EXPECT_EQ(Sample({2, 3.5f, 0, 0}, params, 0, &counts), 0);
  counts.Remove(1, /*is_output=*/true);
  EXPECT_EQ(Sample({2, 3.5f, 0, 0}, params, 0, &counts), 1);
}

TEST_F(SamplerTest, RejectsLogitsThatAreNoNumbers) {
  Sampler sampler(3, {});
  for (const float bad : {kNan, kInfinity}) {
    for (const v1::SamplingParams& params : {v1::SamplingParams(), Temperature(1)}) {
      const absl::StatusOr<int32_t> token =
          sampler.Sample({0, bad, 1}, Rule(params, 3), nullptr, 7);
      EXPECT_EQ(token.status().code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(token.status().message()), HasSubstr("7"));
    }
  }
  EXPECT_FALSE(sampler.Sample({-kInfinity, -kInfinity, -kInfinity}, Rule({}, 3), nullptr, 0).ok());
}

TEST_F(SamplerTest, TinyAndHugeTemperaturesStaySound) {
  EXPECT_EQ(Draw({1, 2, 1.9999f}, Temperature(1e-38f), 100), (std::map<int32_t, int>{{1, 100}}));
  EXPECT_EQ(Draw({1, 2, 3}, Temperature(1e30f), 3000).size(), 3u);
}

TEST_F(SamplerTest, LogProbsAreThoseOfTheUnmodifiedLogits) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.6f), std::log(0.2f),
                                     std::log(0.1f)};
  Sampler sampler(4, {2});
  Candidate own;
  std::vector<Candidate> top(3);
  sampler.LogProbs(logits, 0, own, absl::MakeSpan(top));
  EXPECT_EQ(own.token_id, 0);
  // Rounding of the four logarithms.
  constexpr float kTolerance = 4e-7f;
  EXPECT_NEAR(own.logprob, std::log(0.1f), kTolerance);
  EXPECT_EQ(top[0].token_id, 1);
  EXPECT_NEAR(top[0].logprob, std::log(0.6f), kTolerance);
  EXPECT_EQ(top[1].token_id, 0);  // id 2 is no token
  EXPECT_EQ(top[2].token_id, 3);
}

struct BadParams {
  const char* name;
  void (*set)(v1::SamplingParams&);
};

class SamplingRuleTest : public testing::TestWithParam<BadParams> {};

TEST_P(SamplingRuleTest, RefusesValueOutOfRange) {
  v1::SamplingParams params;
  GetParam().set(params);
  const absl::Status status = MakeSamplingRule(params, 10).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().name));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, SamplingRuleTest,
    testing::Values(
        BadParams{"temperature", [](v1::SamplingParams& p) { p.set_temperature(-1); }},
        BadParams{"temperature", [](v1::SamplingParams& p) { p.set_temperature(kNan); }},
        BadParams{"top_p", [](v1::SamplingParams& p) { p.set_top_p(0); }},
        BadParams{"top_p", [](v1::SamplingParams& p) { p.set_top_p(1.5f); }},
        BadParams{"min_p", [](v1::SamplingParams& p) { p.set_min_p(-0.1f); }},
        BadParams{"repetition_penalty", [](v1::SamplingParams& p) { p.set_repetition_penalty(0); }},
        BadParams{"presence_penalty",
                  [](v1::SamplingParams& p) { p.set_presence_penalty(kInfinity); }},
        BadParams{"frequency_penalty",
                  [](v1::SamplingParams& p) { p.set_frequency_penalty(kNan); }},
        BadParams{"logit_bias", [](v1::SamplingParams& p) { (*p.mutable_logit_bias())[10] = 1; }},
        BadParams{"logit_bias",
                  [](v1::SamplingParams& p) { (*p.mutable_logit_bias())[1] = kInfinity; }}));

}  // namespace
}  // namespace switchyard::worker
