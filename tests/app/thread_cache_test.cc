#include "app/thread_cache.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard::app {
namespace {

using testing::HasSubstr;

class ThreadCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "/thread_cache_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(ThreadCacheTest, FindsWhatWasStoredLast) {
  const ThreadCache cache(folder_ / "made" / "on_demand");
  EXPECT_EQ(cache.Find("a"), std::nullopt);
  cache.Store("a", 4);
  cache.Store("b", 12);
  cache.Store("a", 6);
  EXPECT_EQ(cache.Find("a"), 6);
  EXPECT_EQ(cache.Find("b"), 12);
  EXPECT_EQ(ThreadCache(folder_ / "made" / "on_demand").Find("b"), 12);
}

TEST_F(ThreadCacheTest, ForgetsTheOldestOfMany) {
  const ThreadCache cache(folder_ / "threads");
  for (int i = 1; i <= 100; ++i) cache.Store("model " + std::to_string(i), i);
  EXPECT_EQ(cache.Find("model 1"), std::nullopt);
  EXPECT_EQ(cache.Find("model 36"), std::nullopt);
  EXPECT_EQ(cache.Find("model 37"), 37);
  EXPECT_EQ(cache.Find("model 100"), 100);
}

TEST_F(ThreadCacheTest, WhatMakesNoSenseIsNotKnown) {
  std::ofstream(folder_ / "threads") << "many\ta\n-1\tb\n0\tc\n99999999999\td\n7x\te\n5 f\n3\tg";
  const ThreadCache cache(folder_ / "threads");
  for (const char* key : {"a", "b", "c", "d", "e", "f", "5 f"}) {
    EXPECT_EQ(cache.Find(key), std::nullopt) << key;
  }
  EXPECT_EQ(cache.Find("g"), 3);
}

TEST_F(ThreadCacheTest, WorksOnWhereNothingCanBeWritten) {
  std::ofstream(folder_ / "file") << "in the way";
  const ThreadCache cache(folder_ / "file" / "threads");
  cache.Store("a", 4);
  EXPECT_EQ(cache.Find("a"), std::nullopt);
  const ThreadCache nowhere{std::filesystem::path()};
  nowhere.Store("a", 4);
  EXPECT_EQ(nowhere.Find("a"), std::nullopt);
}

TEST_F(ThreadCacheTest, LivesInTheCacheFolderOfTheUser) {
  setenv("XDG_CACHE_HOME", "/some/cache", 1);
  setenv("HOME", "/home/user", 1);
  EXPECT_EQ(DefaultThreadCachePath(), "/some/cache/switchyard/threads");
  setenv("XDG_CACHE_HOME", "not/absolute", 1);
  EXPECT_EQ(DefaultThreadCachePath(), "/home/user/.cache/switchyard/threads");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_TRUE(DefaultThreadCachePath().empty());
}

TEST(ThreadCacheKeyTest, TellsMachinesLevelsModelsAndCoresApart) {
  CpuBudget budget;
  budget.num_threads = 2;
  budget.cores = {{.cpu = 0}, {.cpu = 3}};
  const std::string key = ThreadCacheKey("Some\tCPU", "avx2", "sha256:12", budget);
  EXPECT_EQ(key, "Some CPU | avx2 | sha256:12 | 2 of 0 3");
  budget.num_threads = 1;
  EXPECT_NE(ThreadCacheKey("Some\tCPU", "avx2", "sha256:12", budget), key);
}

}  // namespace
}  // namespace switchyard::app
