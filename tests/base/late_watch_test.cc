#include "base/late_watch.h"

#include <chrono>
#include <optional>

#include <gtest/gtest.h>

namespace switchyard {
namespace {

using namespace std::chrono_literals;

// Runs `num_stages` stages of 100 us; every `every`-th waits `lost` longer for thread 1. Returns
// the first answer that names a thread.
std::optional<int> Watch(LateWatch& watch, int num_stages, int every, LateWatch::Duration lost,
                         int num_active) {
  for (int stage = 1; stage <= num_stages; ++stage) {
    const bool late = stage % every == 0;
    if (late) watch.OnLate(1, lost);
    const auto resting = watch.OnStage(100us + (late ? lost : 0us), num_active);
    if (resting.has_value()) return resting;
  }
  return std::nullopt;
}

TEST(LateWatchTest, NamesTheThreadThatCostsMoreThanItIsWorth) {
  LateWatch watch(2);
  EXPECT_EQ(Watch(watch, 512, 10, 3ms, 2), 1);
  EXPECT_EQ(watch.num_late(), 6);  // more than a hundredth of 512 stages
}

TEST(LateWatchTest, LeavesAThreadThatIsLateInOneStageOfAHundred) {
  LateWatch watch(2);
  EXPECT_EQ(Watch(watch, 5120, 105, 3ms, 2), std::nullopt);
  EXPECT_GT(watch.num_late(), 40);
}

// One in ten stages takes 250 us longer: 20 % of the time. Half of one of two threads is worth
// 25 %, half of one of three 17 %.
TEST(LateWatchTest, WeighsTheDelayAgainstTheThreadsWork) {
  LateWatch of_two(2);
  EXPECT_EQ(Watch(of_two, 5120, 10, 250us, 2), std::nullopt);
  LateWatch of_three(3);
  EXPECT_EQ(Watch(of_three, 5120, 10, 250us, 3), 1);
}

// A small model: a thousand stages of 3 us between two delays of 3 ms, half of the time.
TEST(LateWatchTest, FewDelaysOfManyShortStagesCountByTheirTime) {
  LateWatch watch(2);
  std::optional<int> resting;
  for (int stage = 1; stage <= 20'000 && !resting.has_value(); ++stage) {
    const bool late = stage % 1000 == 0;
    if (late) watch.OnLate(1, 3ms);
    resting = watch.OnStage(3us + (late ? 3ms : 0ms), 2);
  }
  EXPECT_EQ(resting, 1);
}

TEST(LateWatchTest, CountsAnewAfterAnAnswer) {
  LateWatch watch(2);
  EXPECT_EQ(Watch(watch, 512, 10, 3ms, 2), 1);
  EXPECT_EQ(Watch(watch, 50, 10, 3ms, 2), std::nullopt);
}

TEST(LateWatchTest, NamesTheOneThatIsLateMostOften) {
  LateWatch watch(3);
  std::optional<int> resting;
  for (int stage = 0; !resting.has_value() && stage < 512; ++stage) {
    watch.OnLate(2, 1ms);
    if (stage % 2 == 0) watch.OnLate(0, 5ms);
    resting = watch.OnStage(5ms, 3);
  }
  EXPECT_EQ(resting, 2);
}

TEST(RetryTimerTest, WaitsLongerWhileTrialsFailAndNotForEver) {
  RetryTimer timer(1s);
  EXPECT_EQ(timer.OnRest(10s), 11s);
  timer.OnRetry(11s);
  EXPECT_EQ(timer.OnRest(11s + 1ms), 13s + 1ms);
  RetryTimer::Duration now = 13s + 1ms;
  for (int i = 0; i < 20; ++i) {
    timer.OnRetry(now);
    now = timer.OnRest(now);
  }
  timer.OnRetry(now);
  EXPECT_EQ(timer.OnRest(now) - now, 64s);
}

TEST(RetryTimerTest, StartsAnewAfterAGoodTime) {
  RetryTimer timer(1s);
  timer.OnRest(10s);
  timer.OnRetry(11s);
  timer.OnRest(11s + 1ms);
  timer.OnRetry(14s);
  EXPECT_EQ(timer.OnRest(20s), 21s);
}

}  // namespace
}  // namespace switchyard
