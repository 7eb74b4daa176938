// Ledgers of steps, summed over ranks and links.
#include "coordinator/step_costs.h"

#include "gtest/gtest.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

// A step in which each of `num_ranks` got `bytes` from each other one.
v1::StepResult Step(uint32_t num_ranks, uint64_t bytes) {
  v1::StepResult result;
  result.set_seconds(1);
  for (uint32_t rank = 0; rank < num_ranks; ++rank) {
    v1::RankCost& cost = *result.add_ranks();
    cost.set_rank(rank);
    cost.set_seconds(1);
    cost.set_idle_seconds(0.5);
    v1::StageCost& stage = *cost.add_costs();
    stage.set_stage(v1::STAGE_COLLECTIVE_WAIT);
    stage.set_seconds(0.25 * rank);
    v1::StageCost& rest = *cost.add_costs();
    rest.set_stage(v1::STAGE_UNSPECIFIED);
    rest.set_seconds(1 - 0.25 * rank);
    for (uint32_t peer = 0; peer < num_ranks; ++peer) {
      if (peer == rank) continue;
      v1::PeerTraffic& traffic = *cost.add_received();
      traffic.set_peer(peer);
      traffic.set_bytes(bytes);
      traffic.set_num_messages(2);
      traffic.set_transfer_seconds(0.125);
      traffic.set_flight_seconds(0.25);
    }
  }
  return result;
}

TEST(StepCostsTest, OneRankHasNoListOfRanks) {
  StepCosts costs;
  costs.Add(Step(0, 0));
  EXPECT_TRUE(costs.ranks.empty());
  EXPECT_EQ(costs.ranks.capacity() + costs.links.capacity(), 0u);
}

TEST(StepCostsTest, RanksAndLinksAddUpInOrder) {
  StepCosts first;
  first.Add(Step(3, 100));
  StepCosts sum;
  sum.Add(Step(3, 1000));
  sum += first;
  sum += StepCosts();
  ASSERT_EQ(sum.ranks.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    const RankTotal& total = sum.ranks[static_cast<size_t>(rank)];
    EXPECT_EQ(total.rank, rank);
    EXPECT_EQ(total.num_steps, 2);
    EXPECT_EQ(total.seconds, 2);
    EXPECT_EQ(total.idle_seconds, 1);
    EXPECT_EQ(total.stages[v1::STAGE_COLLECTIVE_WAIT].seconds, 0.5 * rank);
    EXPECT_EQ(total.stages[v1::STAGE_UNSPECIFIED].seconds, 0);
    EXPECT_EQ(total.unattributed_seconds(), 2 - 0.5 * rank);
  }
  ASSERT_EQ(sum.links.size(), 6u);
  const LinkTotal& link = sum.links[3];  // to rank 1: from 0 and 2
  EXPECT_EQ(link.from, 2);
  EXPECT_EQ(link.to, 1);
  EXPECT_EQ(link.bytes, 1100);
  EXPECT_EQ(link.num_messages, 4);
  EXPECT_EQ(link.transfer_seconds, 0.25);
  EXPECT_EQ(link.flight_seconds, 0.5);
}

TEST(StepCostsTest, ALedgerThatComesLateCountsWithALaterStep) {
  v1::StepResult without = Step(2, 100);
  without.mutable_ranks()->RemoveLast();
  StepCosts sum;
  sum.Add(without);
  sum.Add(Step(2, 100));
  EXPECT_EQ(sum.num_steps, 2);
  EXPECT_EQ(sum.ranks[0].num_steps, 2);
  EXPECT_EQ(sum.ranks[1].num_steps, 1);
}

TEST(StepCostsTest, StagesHaveTheNamesOfReports) {
  EXPECT_EQ(StageName(v1::STAGE_COLLECTIVE_WAIT), "collective_wait");
  EXPECT_EQ(StageName(v1::STAGE_QSA_SELECT), "qsa_select");
}

}  // namespace
}  // namespace switchyard::coordinator
