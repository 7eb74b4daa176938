#include "placement/expert_stats.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"

namespace switchyard::placement {
namespace {

// Experts 0 to num_experts - 1 divided over ranks like cards, all with the same chance.
std::vector<RankExperts> Ranks(int num_experts, int num_ranks, double chance) {
  std::vector<RankExperts> ranks(static_cast<size_t>(num_ranks));
  for (int e = 0; e < num_experts; ++e) {
    ranks[static_cast<size_t>(e % num_ranks)].chances.push_back(chance);
  }
  return ranks;
}

// E (1 - (1 - K / E)^B) of 512 experts, 10 a row; published as 10, 38.8 and 74.7 for B = 1, 4, 8.
TEST(ExpertStatsTest, DifferentExpertsOfAStep) {
  const std::vector<double> row = ChanceOfExperts({}, 512, 10);
  EXPECT_NEAR(ExpectedDistinct(ChanceInStep(row, 1)), 10, 1e-9);
  EXPECT_NEAR(ExpectedDistinct(ChanceInStep(row, 4)), 512 * (1 - std::pow(1 - 10.0 / 512, 4)),
              1e-9);
  EXPECT_NEAR(ExpectedDistinct(ChanceInStep(row, 4)), 38.8, 0.1);
  EXPECT_NEAR(ExpectedDistinct(ChanceInStep(row, 8)), 74.7, 0.1);
}

// The largest share of a rank with whole experts: the published figures, to their two digits.
TEST(ExpertStatsTest, LargestShareOfARank) {
  const std::vector<double> row = ChanceOfExperts({}, 512, 10);
  for (const auto& [num_ranks, num_rows, share] :
       std::vector<std::tuple<int, int, double>>{{1, 1, 1.0},
                                                 {2, 1, 0.62},
                                                 {3, 1, 0.49},
                                                 {4, 1, 0.417},
                                                 {2, 8, 0.54},
                                                 {3, 8, 0.39},
                                                 {4, 8, 0.31}}) {
    const std::vector<double> step = ChanceInStep(row, num_rows);
    const std::vector<RankExperts> ranks = Ranks(512, num_ranks, step[0]);
    EXPECT_NEAR(ExpectedLargest(ranks) / ExpectedDistinct(step), share, 0.006)
        << num_ranks << " ranks, " << num_rows << " rows";
  }
}

// Two of four experts, two ranks of two: both on one rank in 2 of the 6 pairs.
TEST(ExpertStatsTest, LargestOfFourExpertsByHand) {
  EXPECT_NEAR(ExpectedLargest(Ranks(4, 2, 0.5)), (2.0 * 2 + 4.0 * 1) / 6, 1e-9);
}

// One of four experts is chosen; rank 0 has a shared expert that is half as large besides. The
// chosen one is on rank 0 in half of the cases: 1.5, else max(1, 0.5) = 1.
TEST(ExpertStatsTest, WorkBesidesCounts) {
  std::vector<RankExperts> ranks = Ranks(4, 2, 0.25);
  ranks[0].offset = 0.5;
  EXPECT_NEAR(ExpectedLargest(ranks), 1.25, 1e-9);
}

TEST(ExpertStatsTest, WhereAllExpertsAreReadNothingIsUneven) {
  EXPECT_NEAR(ExpectedLargest(Ranks(512, 4, 1.0)), 128, 1e-6);
  // 171 of 512 on the first of three.
  EXPECT_NEAR(ExpectedLargest(Ranks(512, 3, 1.0)), 171, 1e-6);
}

TEST(ExpertStatsTest, CertainExpertsAreCertain) {
  // 7 uses of 10 fall on one expert, which a row can choose once only.
  const std::vector<double> use = {7, 1, 1, 1};
  const std::vector<double> chance = ChanceOfExperts(use, 4, 2);
  EXPECT_NEAR(chance[0], 1, 1e-9);
  EXPECT_NEAR(chance[1], 1.0 / 3, 1e-9);
  EXPECT_NEAR(std::accumulate(chance.begin(), chance.end(), 0.0), 2, 1e-9);
}

TEST(ExpertStatsTest, UseOfAnotherLengthIsUnknown) {
  const std::vector<double> use = {7, 1};
  EXPECT_NEAR(ChanceOfExperts(use, 4, 2)[0], 0.5, 1e-12);
}

// A hot expert on one rank makes that rank slower than even use would.
TEST(ExpertStatsTest, HotExpertsOnOneRankWeighMore) {
  std::vector<RankExperts> even = Ranks(16, 2, 4.0 / 16);
  std::vector<RankExperts> hot = even;
  std::fill(hot[0].chances.begin(), hot[0].chances.end(), 0.4);
  std::fill(hot[1].chances.begin(), hot[1].chances.end(), 0.1);
  EXPECT_GT(ExpectedLargest(hot), ExpectedLargest(even) + 0.3);
}

TEST(ExpertStatsTest, TheMostUsedExpertsAreResidentFirst) {
  const std::vector<double> use = {1, 4, 3, 2};
  EXPECT_NEAR(MissShare(use, 0), 1, 1e-12);
  EXPECT_NEAR(MissShare(use, 0.25), 0.6, 1e-12);
  EXPECT_NEAR(MissShare(use, 0.5), 0.3, 1e-12);
  EXPECT_NEAR(MissShare(use, 0.625), 0.2, 1e-12);  // half of the third
  EXPECT_NEAR(MissShare(use, 1), 0, 1e-12);
}

}  // namespace
}  // namespace switchyard::placement
