#include "base/cpu_topology.h"

#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// `num_cores` cores in `num_domains` domains of neighbours: 0 1 2 | 3 4 5 | ...
CpuTopology Machine(int num_cores, int num_domains = 1) {
  CpuTopology topology;
  for (int cpu = 0; cpu < num_cores; ++cpu) {
    topology.allowed_cpus.push_back(cpu);
    topology.cores.push_back(
        {.cpu = cpu, .l3_domain = cpu / (num_cores / num_domains), .package = 0, .numa_node = 0});
  }
  return topology;
}

std::vector<int> CpusOf(const std::vector<CpuCore>& cores) {
  std::vector<int> cpus;
  for (const CpuCore& core : cores) cpus.push_back(core.cpu);
  return cpus;
}

TEST(CpuTopologyTest, CoresAreDistinctAllowedCpus) {
  const CpuTopology topology = ReadCpuTopology();
  EXPECT_EQ(topology.allowed_cpus, AllowedCpus());
  const std::set<int> allowed(topology.allowed_cpus.begin(), topology.allowed_cpus.end());
  std::set<int> cpus;
  for (const CpuCore& core : topology.cores) {
    EXPECT_TRUE(allowed.contains(core.cpu)) << core.cpu;
    EXPECT_TRUE(cpus.insert(core.cpu).second) << core.cpu;
  }
  EXPECT_FALSE(cpus.empty());
}

TEST(CpuTopologyTest, FollowsTheAffinityMask) {
  const int last = AllowedCpus().back();
  std::thread([last] {
    ASSERT_TRUE(PinThisThread(last));
    EXPECT_THAT(AllowedCpus(), ElementsAre(last));
    const CpuTopology topology = ReadCpuTopology();
    ASSERT_EQ(topology.cores.size(), 1u);
    EXPECT_EQ(topology.cores[0].cpu, last);
  }).join();
}

TEST(CpuTopologyTest, PinningToAForbiddenCpuChangesNothing) {
  const std::vector<int> before = AllowedCpus();
  EXPECT_FALSE(PinThisThread(-1));
  EXPECT_FALSE(PinThisThread(1 << 19));
  EXPECT_EQ(AllowedCpus(), before);
}

TEST(SpreadOverDomainsTest, GoesRoundRobin) {
  EXPECT_THAT(CpusOf(SpreadOverDomains(Machine(6, 3).cores)), ElementsAre(0, 2, 4, 1, 3, 5));
  EXPECT_THAT(CpusOf(SpreadOverDomains(Machine(3).cores)), ElementsAre(0, 1, 2));
}

TEST(SpreadOverDomainsTest, UnevenDomainsKeepAllCores) {
  std::vector<CpuCore> cores = Machine(5).cores;
  cores[3].l3_domain = 7;  // 0 1 2 4 | 3
  EXPECT_THAT(CpusOf(SpreadOverDomains(cores)), ElementsAre(0, 3, 1, 2, 4));
}

TEST(CpuBudgetTest, IsAllCoresOfASmallMachine) {
  const CpuBudget budget = MakeCpuBudget(Machine(2), std::nullopt);
  EXPECT_EQ(budget.num_threads, 2);
  EXPECT_EQ(budget.reason, "2 of 2 cores allowed");
  EXPECT_THAT(CpusOf(budget.cores), ElementsAre(0, 1));
}

TEST(CpuBudgetTest, LeavesTwoCoresFromEightOn) {
  EXPECT_EQ(MakeCpuBudget(Machine(7), std::nullopt).num_threads, 7);
  EXPECT_EQ(MakeCpuBudget(Machine(8), std::nullopt).num_threads, 6);
  EXPECT_EQ(MakeCpuBudget(Machine(48), std::nullopt).num_threads, 46);
}

TEST(CpuBudgetTest, FollowsTheQuotaRoundedDown) {
  const CpuBudget budget = MakeCpuBudget(Machine(48), 3.9);
  EXPECT_EQ(budget.num_threads, 3);
  EXPECT_EQ(budget.reason, "CPU quota 3.9 of 48 cores allowed");
  EXPECT_EQ(MakeCpuBudget(Machine(2), 1.0).num_threads, 1);
  EXPECT_EQ(MakeCpuBudget(Machine(2), 1.0).reason, "CPU quota 1.0 of 2 cores allowed");
}

TEST(CpuBudgetTest, IsAtLeastOne) {
  EXPECT_EQ(MakeCpuBudget(Machine(4), 0.25).num_threads, 1);
  EXPECT_EQ(MakeCpuBudget(Machine(4), 0.25).reason, "CPU quota 0.25 of 4 cores allowed");
  EXPECT_EQ(MakeCpuBudget(Machine(1), std::nullopt).num_threads, 1);
}

TEST(CpuBudgetTest, QuotaAboveTheCoresChangesNothing) {
  const CpuBudget budget = MakeCpuBudget(Machine(2), 1e12);
  EXPECT_EQ(budget.num_threads, 2);
  EXPECT_EQ(budget.reason, "2 of 2 cores allowed");
}

TEST(CpuBudgetTest, DefaultIsWithinTheAllowedCpus) {
  const CpuBudget budget = DefaultCpuBudget();
  EXPECT_GE(budget.num_threads, 1);
  EXPECT_LE(budget.num_threads, static_cast<int>(AllowedCpus().size()));
  EXPECT_FALSE(budget.reason.empty());
}

TEST(ThreadCountWarningTest, WarnsAboveTheBudgetOnly) {
  const CpuBudget budget = MakeCpuBudget(Machine(4), 2.0);
  EXPECT_EQ(ThreadCountWarning(1, budget), std::nullopt);
  EXPECT_EQ(ThreadCountWarning(2, budget), std::nullopt);
  const std::optional<std::string> warning = ThreadCountWarning(3, budget);
  ASSERT_TRUE(warning.has_value());
  EXPECT_THAT(*warning, HasSubstr("3 threads"));
  EXPECT_THAT(*warning, HasSubstr(budget.reason));
}

TEST(CoresForThreadsTest, GivesOneCoreEachAsLongAsThereAreSome) {
  const CpuBudget budget = MakeCpuBudget(Machine(4, 2), std::nullopt);
  EXPECT_THAT(CpusOf(CoresForThreads(2, budget)), ElementsAre(0, 2));
  EXPECT_THAT(CpusOf(CoresForThreads(4, budget)), ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(CpusOf(CoresForThreads(6, budget)), ElementsAre(0, 2, 1, 3, 0, 2));
}

TEST(CoresForThreadsTest, LeavesMoreThreadsThanCoresToTheKernelWhereCoresHaveSiblings) {
  CpuTopology machine = Machine(4);
  for (int cpu = 4; cpu < 8; ++cpu) machine.allowed_cpus.push_back(cpu);
  const CpuBudget budget = MakeCpuBudget(machine, std::nullopt);
  EXPECT_THAT(CpusOf(CoresForThreads(4, budget)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(CoresForThreads(5, budget), IsEmpty());
}

TEST(CoresForThreadsTest, LeavesASingleThreadToTheKernel) {
  EXPECT_THAT(CoresForThreads(1, MakeCpuBudget(Machine(4), std::nullopt)), IsEmpty());
}

TEST(DistanceTest, GrowsFromCacheToSocket) {
  const CpuCore here = {.cpu = 0, .l3_domain = 0, .package = 0, .numa_node = 0};
  EXPECT_EQ(Distance(here, {.cpu = 1, .l3_domain = 0, .package = 0, .numa_node = 0}), 0);
  EXPECT_EQ(Distance(here, {.cpu = 2, .l3_domain = 1, .package = 0, .numa_node = 0}), 1);
  EXPECT_EQ(Distance(here, {.cpu = 3, .l3_domain = 2, .package = 0, .numa_node = 1}), 2);
  EXPECT_EQ(Distance(here, {.cpu = 4, .l3_domain = 3, .package = 1, .numa_node = 2}), 3);
}

}  // namespace
}  // namespace switchyard
