#include "worker/forward/rank_head.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/local_group.h"
#include "worker/ledger.h"
#include "worker/sampler.h"

namespace switchyard::worker {
namespace {

constexpr int64_t kVocab = 101;  // not divided evenly
constexpr int kRanks = 3;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What the lead rank gets when each rank has its part of `row`.
std::vector<float> Collected(const std::vector<float>& row, int num_candidates,
                             const std::vector<int32_t>& masked = {}) {
  comm::CommOptions options;
  options.group_id = "head";
  options.wait = comm::WaitPolicy::kBlock;
  auto group = comm::CreateLocalGroup(kRanks, options);
  EXPECT_TRUE(group.ok()) << group.status();
  std::vector<float> logits(kVocab, 0), peer(kVocab);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      placement::RankShare share;
      share.rank = rank;
      share.world_size = kRanks;
      share.is_lead = rank == 0;
      share.output_rows = placement::OutputRowsOf(kVocab, rank, kRanks);
      RankHead head(kVocab, share, masked);
      Ledger ledger;
      RankExchange exchange(*(*group)[static_cast<size_t>(rank)], ledger);
      const MatrixView<const float> own(row.data() + share.output_rows.begin, 1,
                                        share.output_rows.size());
      const absl::Status status = rank == 0
                                      ? head.Collect(own, num_candidates, {peer.data(), 1, kVocab},
                                                     exchange, {logits.data(), 1, kVocab})
                                      : head.Send(own, num_candidates, exchange);
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return logits;
}

std::vector<float> SomeLogits() {
  std::vector<float> row(kVocab);
  for (int64_t i = 0; i < kVocab; ++i) {
    row[static_cast<size_t>(i)] = static_cast<float>(i * 53 % kVocab) / 8;
  }
  return row;
}

TEST(RankHeadTest, WithoutCandidatesTheWholeRowArrives) {
  EXPECT_EQ(Collected(SomeLogits(), 0), SomeLogits());
}

TEST(RankHeadTest, AChoiceAmongTheBestIsThatOfTheWholeRow) {
  std::vector<float> row = SomeLogits();
  row[80] = row[50] = row[7] = 100;  // a tie over all ranks
  const std::vector<int32_t> masked = {7, 60};
  for (const int top_k : {1, 2, 5, 30}) {
    for (const uint64_t seed : {1, 2, 3, 4, 5}) {
      Sampler sampler(kVocab, masked);
      SamplingRule rule;
      rule.greedy = top_k == 1;
      rule.top_k = top_k;
      rule.temperature = 3;
      rule.seed = seed;
      const auto whole = sampler.Sample(row, rule, nullptr, 11);
      const auto best = sampler.Sample(Collected(row, top_k, masked), rule, nullptr, 11);
      ASSERT_TRUE(whole.ok() && best.ok());
      EXPECT_EQ(*best, *whole) << top_k;
    }
  }
}

TEST(RankHeadTest, ALogitThatIsNoNumberIsNotOverlooked) {
  for (const float wrong : {std::nanf(""), kInfinity}) {
    for (const size_t at : {5, 50, 99}) {
      std::vector<float> row = SomeLogits();
      row[at] = wrong;
      Sampler sampler(kVocab, {});
      const std::vector<int32_t> masked = {static_cast<int32_t>(at)};
      EXPECT_FALSE(sampler.Sample(Collected(row, 1, masked), {}, nullptr, 0).ok()) << at;
    }
  }
}

TEST(RankHeadTest, ARankWithNothingToChooseSendsNothingThatCanWin) {
  std::vector<int32_t> masked;  // all of the last rank
  for (int32_t id = 67; id < kVocab; ++id) masked.push_back(id);
  const std::vector<float> logits = Collected(SomeLogits(), 4, masked);
  for (size_t id = 67; id < kVocab; ++id) EXPECT_EQ(logits[id], -kInfinity) << id;
}

}  // namespace
}  // namespace switchyard::worker
