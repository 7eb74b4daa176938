#include "comm/wait_plan.h"

#include <vector>

#include <gtest/gtest.h>

namespace switchyard::comm {
namespace {

std::vector<RankThreads> Ranks(int num_ranks, int threads_each, std::vector<int> cpus) {
  return std::vector<RankThreads>(static_cast<size_t>(num_ranks), {threads_each, std::move(cpus)});
}

TEST(WaitPlanTest, AutoSpinsOnlyWhereEveryThreadHasACpu) {
  EXPECT_EQ(SpinBudgetNs(WaitPolicy::kAuto, Ranks(2, 1, {0, 1}), 0), kSpinNs);
  EXPECT_EQ(SpinBudgetNs(WaitPolicy::kAuto, Ranks(4, 1, {0, 1}), 0), 0);
  EXPECT_EQ(SpinBudgetNs(WaitPolicy::kAuto, Ranks(2, 2, {0, 1, 2}), 0), 0);
  EXPECT_EQ(SpinBudgetNs(WaitPolicy::kAuto, Ranks(2, 2, {0, 1, 2, 3}), 0), kSpinNs);
}

TEST(WaitPlanTest, AQuotaCountsLikeMissingCpus) {
  EXPECT_EQ(SpinBudgetNs(WaitPolicy::kAuto, Ranks(2, 1, {0, 1, 2, 3}), 1.5), 0);
  EXPECT_EQ(SpinBudgetNs(WaitPolicy::kAuto, Ranks(2, 1, {0, 1, 2, 3}), 2), kSpinNs);
}

TEST(WaitPlanTest, RanksBoundToCpusOfTheirOwnAddUp) {
  EXPECT_EQ(SpinBudgetNs(WaitPolicy::kAuto, {{1, {0}}, {1, {1}}}, 0), kSpinNs);
  EXPECT_EQ(SpinBudgetNs(WaitPolicy::kAuto, {{1, {0}}, {1, {0}}}, 0), 0);
}

TEST(WaitPlanTest, OthersAreObeyed) {
  EXPECT_EQ(SpinBudgetNs(WaitPolicy::kSpin, Ranks(9, 1, {0}), 0), kSpinNs);
  EXPECT_EQ(SpinBudgetNs(WaitPolicy::kBlock, Ranks(1, 1, {0, 1}), 0), 0);
}

TEST(WaitPlanTest, SpinningThatDoesNotHelpIsGivenUpForAWhile) {
  SpinGauge gauge(1);  // a nanosecond: each try is one look of sixteen
  const auto looks = [&gauge] {
    int num_looks = 0;
    EXPECT_FALSE(gauge.SpinUntil([&num_looks] {
      ++num_looks;
      return false;
    }));
    return num_looks;
  };
  for (int i = 0; i < 8; ++i) EXPECT_GT(looks(), 1) << i;
  int num_tries = 0;
  for (int i = 0; i < 640; ++i) num_tries += looks() > 1;
  EXPECT_EQ(num_tries, 10);
  // One success, and it spins again. 63 looks later it tries.
  for (int i = 0; i < 63; ++i) EXPECT_EQ(looks(), 1);
  int look = 0;
  EXPECT_TRUE(gauge.SpinUntil([&look] { return ++look > 5; }));
  EXPECT_GT(looks(), 1);
}

}  // namespace
}  // namespace switchyard::comm
