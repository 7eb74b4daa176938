#include "base/thread_calibration.h"

#include <atomic>
#include <cstddef>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard {
namespace {

using testing::ElementsAre;

TEST(SweepCountsTest, GrowInTwoStepsToADoublingAndEndWithTheMost) {
  EXPECT_THAT(SweepCounts(1), ElementsAre(1));
  EXPECT_THAT(SweepCounts(2), ElementsAre(1, 2));
  EXPECT_THAT(SweepCounts(5), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(SweepCounts(6), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(SweepCounts(46), ElementsAre(1, 2, 4, 6, 8, 12, 16, 24, 32, 46));
}

TEST(LeastOfBestThreadsTest, TakesTheLeastWithinThreePercent) {
  const std::vector<ThreadRate> rates = {{1, 20e9}, {2, 39e9}, {4, 60.3e9}, {6, 62e9}, {8, 61e9}};
  EXPECT_EQ(LeastOfBestThreads(rates), 4);
}

TEST(LeastOfBestThreadsTest, TakesTheBestWhereRatesGrow) {
  EXPECT_EQ(LeastOfBestThreads(std::vector<ThreadRate>{{1, 10}, {2, 19}, {4, 36}}), 4);
  EXPECT_EQ(LeastOfBestThreads(std::vector<ThreadRate>{{3, 10}}), 3);
  EXPECT_EQ(LeastOfBestThreads(std::vector<ThreadRate>{{4, 10}, {1, 10}}), 1);
}

TEST(MeasureThreadRatesTest, MeasuresEachCountAndLeavesThePoolAsItWas) {
  const std::vector<std::byte> memory(3 << 20 | 100);  // its end is no whole part
  ThreadPool pool({.num_threads = 3, .num_running = 2});
  const auto rates = MeasureThreadRates(pool, memory, {1, 3});
  ASSERT_EQ(rates.size(), 2u);
  EXPECT_EQ(rates[0].num_threads, 1);
  EXPECT_EQ(rates[1].num_threads, 3);
  // Slower than a megabyte a second is no memory.
  for (const ThreadRate& rate : rates) EXPECT_GT(rate.bytes_per_second, 1e6);
  EXPECT_EQ(pool.num_running(), 2);
}

TEST(MeasureThreadRatesTest, MemoryMayBeSmallerThanAPart) {
  const std::vector<std::byte> memory(1);
  ThreadPool pool({.num_threads = 1});
  EXPECT_EQ(MeasureThreadRates(pool, memory, {1}).size(), 1u);
}

}  // namespace
}  // namespace switchyard
