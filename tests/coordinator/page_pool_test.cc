#include "coordinator/page_pool.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::coordinator {
namespace {

TEST(PagePoolTest, HandsOutEachPageOnce) {
  PagePool pool(5);
  const auto a = pool.Allocate(2);
  const auto b = pool.Allocate(3);
  ASSERT_TRUE(a && b);
  std::set<uint32_t> all(a->begin(), a->end());
  all.insert(b->begin(), b->end());
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_FALSE(pool.Allocate(1));
  EXPECT_THAT(pool.Allocate(0), ::testing::Optional(::testing::IsEmpty()));
}

TEST(PagePoolTest, SharedPageIsFreeAfterTheLastRelease) {
  PagePool pool(2);
  const auto pages = pool.Allocate(1);
  pool.AddReference(*pages);
  pool.Release(*pages);
  EXPECT_EQ(pool.num_free(), 1);
  pool.Release(*pages);
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(PagePoolTest, FailedAllocationTakesNothing) {
  PagePool pool(3);
  EXPECT_FALSE(pool.Allocate(4));
  EXPECT_EQ(pool.num_free(), 3);
}

TEST(PagePoolDeathTest, SecondReleaseIsCaught) {
  PagePool pool(1);
  const auto pages = pool.Allocate(1);
  pool.Release(*pages);
  EXPECT_DEATH(pool.Release(*pages), "check failed");
}

}  // namespace
}  // namespace switchyard::coordinator
