#include "coordinator/prefix_index.h"

#include <numeric>

#include "gtest/gtest.h"

#include "coordinator/scheduler.h"

namespace switchyard::coordinator {
namespace {

std::vector<int32_t> Tokens(int count, int32_t seed = 0) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), seed * 1000);
  return tokens;
}

class PrefixIndexTest : public ::testing::Test {
 protected:
  // Inserts the first `num_pages` pages of `tokens` and lets go of the pages, as a finished
  // sequence does.
  std::optional<uint32_t> Insert(std::string_view salt, const std::vector<int32_t>& tokens,
                                 int num_pages) {
    const auto pages = pool_.Allocate(num_pages);
    const auto number =
        index_.Insert(salt, absl::MakeSpan(tokens).first(num_pages * kPageTokens), *pages);
    pool_.Release(*pages);
    return number;
  }

  PagePool pool_{32};
  PrefixIndex index_{3, pool_};
};

TEST_F(PrefixIndexTest, FindsTheLongestProperPrefix) {
  const auto tokens = Tokens(400);
  const auto one = Insert("", tokens, 1);
  const auto three = Insert("", tokens, 3);
  ASSERT_TRUE(one && three);

  auto hit = index_.Find("", tokens);
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->position, 3 * kPageTokens);
  EXPECT_EQ(hit->checkpoint, *three);
  EXPECT_EQ(hit->pages.size(), 3u);
  pool_.Release(hit->pages);

  // Exactly the three pages: one token must be left to compute, so the shorter entry serves.
  hit = index_.Find("", absl::MakeSpan(tokens).first(3 * kPageTokens));
  ASSERT_TRUE(hit);
  EXPECT_EQ(hit->checkpoint, *one);
  pool_.Release(hit->pages);
  EXPECT_FALSE(index_.Find("", absl::MakeSpan(tokens).first(kPageTokens)));
}

TEST_F(PrefixIndexTest, OtherTokensOrSaltDoNotHit) {
  auto tokens = Tokens(200);
  Insert("a", tokens, 2);
  EXPECT_FALSE(index_.Find("b", tokens));
  tokens[100] = 7;
  EXPECT_FALSE(index_.Find("a", tokens));
}

TEST_F(PrefixIndexTest, EvictsTheLeastRecentlyUsed) {
  const auto a = Tokens(100, 1), b = Tokens(100, 2), c = Tokens(100, 3), d = Tokens(100, 4);
  Insert("", a, 1);
  Insert("", b, 1);
  Insert("", c, 1);
  EXPECT_TRUE(index_.Touch("", absl::MakeSpan(a).first(kPageTokens)));
  EXPECT_TRUE(Insert("", d, 1));
  EXPECT_EQ(index_.num_entries(), 3);
  EXPECT_FALSE(index_.Find("", b));
  for (const auto* tokens : {&a, &c, &d}) {
    const auto hit = index_.Find("", *tokens);
    ASSERT_TRUE(hit);
    pool_.Release(hit->pages);
  }
}

TEST_F(PrefixIndexTest, GivesPagesBack) {
  Insert("", Tokens(200, 1), 2);
  Insert("", Tokens(200, 2), 3);
  EXPECT_EQ(pool_.num_free(), 27);
  EXPECT_TRUE(index_.EvictOne());
  EXPECT_EQ(pool_.num_free(), 29);
  EXPECT_TRUE(index_.EvictOne());
  EXPECT_FALSE(index_.EvictOne());
  EXPECT_EQ(pool_.num_free(), 32);
}

TEST_F(PrefixIndexTest, WithoutCheckpointsNothingIsKept) {
  PrefixIndex none(0, pool_);
  const auto tokens = Tokens(64);
  const auto pages = pool_.Allocate(1);
  EXPECT_FALSE(none.Insert("", tokens, *pages));
  EXPECT_EQ(none.num_entries(), 0);
}

}  // namespace
}  // namespace switchyard::coordinator
