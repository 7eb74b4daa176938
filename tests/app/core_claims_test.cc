#include "app/core_claims.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard::app {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<CpuCore> Cores(const std::vector<int>& cpus) {
  std::vector<CpuCore> cores;
  for (const int cpu : cpus) cores.push_back({.cpu = cpu});
  return cores;
}

std::vector<int> CpusOf(const CoreClaims& claims) {
  std::vector<int> cpus;
  for (const CpuCore& core : claims.cores()) cpus.push_back(core.cpu);
  return cpus;
}

// Two claims of one process exclude each other as those of two do: locks belong to open files.
class CoreClaimsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "/core_claims_XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(CoreClaimsTest, EachCoreHasOneOwner) {
  const CoreClaims first(folder_ / "cores", Cores({4, 0, 2}), 2);
  EXPECT_THAT(CpusOf(first), ElementsAre(4, 0));
  EXPECT_EQ(first.num_taken(), 0);
  const CoreClaims second(folder_ / "cores", Cores({4, 0, 2, 6}), 8);
  EXPECT_THAT(CpusOf(second), ElementsAre(2, 6));
  EXPECT_EQ(second.num_taken(), 2);
  const CoreClaims third(folder_ / "cores", Cores({4, 0}), 2);
  EXPECT_THAT(CpusOf(third), IsEmpty());
}

TEST_F(CoreClaimsTest, WhatIsGivenUpCanBeClaimed) {
  auto first = std::make_unique<CoreClaims>(folder_, Cores({0, 1, 2}), 3);
  first->KeepFirst(1);
  EXPECT_THAT(CpusOf(*first), ElementsAre(0));
  const CoreClaims second(folder_, Cores({0, 1, 2}), 3);
  EXPECT_THAT(CpusOf(second), ElementsAre(1, 2));
  first.reset();
  EXPECT_THAT(CpusOf(CoreClaims(folder_, Cores({0, 1, 2}), 3)), ElementsAre(0));
}

TEST_F(CoreClaimsTest, AllAreFreeWhereNothingCanBeLocked) {
  std::ofstream(folder_ / "file") << "in the way";
  for (const auto& folder : {std::filesystem::path(), folder_ / "file" / "cores"}) {
    const CoreClaims first(folder, Cores({0, 1}), 2);
    EXPECT_THAT(CpusOf(first), ElementsAre(0, 1));
    const CoreClaims second(folder, Cores({0, 1}), 2);
    EXPECT_THAT(CpusOf(second), ElementsAre(0, 1));
  }
}

TEST_F(CoreClaimsTest, LiesInTheRuntimeFolderOfTheUser) {
  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(DefaultCoreClaimsFolder(), "/run/user/7/switchyard/cores");
  setenv("XDG_RUNTIME_DIR", "not/absolute", 1);
  EXPECT_TRUE(DefaultCoreClaimsFolder().empty());
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_TRUE(DefaultCoreClaimsFolder().empty());
}

}  // namespace
}  // namespace switchyard::app
