#include "base/cpu_quota.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard {
namespace {

TEST(ParseCpuMaxTest, GivesCpusOrNothing) {
  EXPECT_EQ(ParseCpuMax("150000 100000\n"), 1.5);
  EXPECT_EQ(ParseCpuMax("100000 100000"), 1.0);
  EXPECT_EQ(ParseCpuMax("max 100000\n"), std::nullopt);
  for (const char* nonsense : {"", "\n", "100000", "-1 100000", "100000 0", "1 2 3", "1x 100000"}) {
    EXPECT_EQ(ParseCpuMax(nonsense), std::nullopt) << nonsense;
  }
}

TEST(ParseCfsQuotaTest, GivesCpusOrNothing) {
  EXPECT_EQ(ParseCfsQuota("50000\n", "100000\n"), 0.5);
  EXPECT_EQ(ParseCfsQuota("-1\n", "100000\n"), std::nullopt);
  EXPECT_EQ(ParseCfsQuota("", ""), std::nullopt);
  EXPECT_EQ(ParseCfsQuota("100000", "0"), std::nullopt);
}

TEST(ParseCgroupMembershipsTest, KeepsV2AndTheCpuController) {
  const auto groups = ParseCgroupMemberships(
      "12:cpuset:/a\n4:cpu,cpuacct:/docker/x:y\n3:cpuacct:/b\n1:name=systemd:/\n0::/user.slice\n"
      "nonsense\n");
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_FALSE(groups[0].is_v2);
  EXPECT_EQ(groups[0].path, "/docker/x:y");
  EXPECT_TRUE(groups[1].is_v2);
  EXPECT_EQ(groups[1].path, "/user.slice");
}

TEST(ParseCgroupMountsTest, KeepsV2AndTheCpuController) {
  const auto mounts = ParseCgroupMounts(
      "25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
      "31 23 0:27 /docker/x /sys/fs/cgroup/cpu,cpuacct ro,nosuid shared:9 master:2 - cgroup cgroup "
      "rw,cpu,cpuacct\n"
      "32 23 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
      "33 23 0:29 / /with\\040space rw - cgroup2 cgroup2 rw,nsdelegate\n"
      "34 23 0:30 / /short rw - cgroup2\n");
  ASSERT_EQ(mounts.size(), 2u);
  EXPECT_FALSE(mounts[0].is_v2);
  EXPECT_EQ(mounts[0].group, "/docker/x");
  EXPECT_EQ(mounts[0].folder, "/sys/fs/cgroup/cpu,cpuacct");
  EXPECT_TRUE(mounts[1].is_v2);
  EXPECT_EQ(mounts[1].folder, "/with space");
}

// A made-up file system below a temporary folder.
class ReadCpuQuotaTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "cpu_quota_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WriteV2(const std::string& group) {
    Write("/proc/self/cgroup", "0::" + group + "\n");
    Write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  }

  std::string root_;
};

TEST_F(ReadCpuQuotaTest, IsNothingWithoutControlGroups) {
  EXPECT_EQ(ReadCpuQuota(root_), std::nullopt);
}

TEST_F(ReadCpuQuotaTest, IsNothingIfNoGroupLimits) {
  WriteV2("/a/b");
  Write("/sys/fs/cgroup/a/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(ReadCpuQuota(root_), std::nullopt);
}

TEST_F(ReadCpuQuotaTest, ReadsOwnGroup) {
  WriteV2("/a/b");
  Write("/sys/fs/cgroup/a/b/cpu.max", "250000 100000\n");
  EXPECT_EQ(ReadCpuQuota(root_), 2.5);
}

TEST_F(ReadCpuQuotaTest, LeastOfAllAncestorsCounts) {
  WriteV2("/a/b/c");
  Write("/sys/fs/cgroup/a/cpu.max", "100000 100000\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/a/b/c/cpu.max", "400000 100000\n");
  Write("/sys/fs/cgroup/other/cpu.max", "1000 100000\n");  // not ours
  EXPECT_EQ(ReadCpuQuota(root_), 1.0);
}

TEST_F(ReadCpuQuotaTest, ReadsV1ThroughTheMountOfAContainer) {
  Write("/proc/self/cgroup", "4:cpu,cpuacct:/docker/x/inner\n0::/\n");
  Write("/proc/self/mountinfo", "31 23 0:27 /docker/x /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
  Write("/cg/cpu/inner/cpu.cfs_quota_us", "300000\n");
  Write("/cg/cpu/inner/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(ReadCpuQuota(root_), 3.0);
  Write("/cg/cpu/cpu.cfs_quota_us", "150000\n");
  Write("/cg/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(ReadCpuQuota(root_), 1.5);
}

TEST_F(ReadCpuQuotaTest, GroupOutsideTheMountCountsAsItsRoot) {
  Write("/proc/self/cgroup", "0::/../sibling\n");
  Write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  Write("/sys/fs/sibling/cpu.max", "100000 100000\n");  // must not be reached through ".."
  EXPECT_EQ(ReadCpuQuota(root_), 2.0);
}

// Files put over /sys/fs/cgroup by a sandbox are of no cgroup file system type.
TEST_F(ReadCpuQuotaTest, ReadsTheUsualPlacesWithoutAMount) {
  Write("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n");
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(ReadCpuQuota(root_), 1.0);
  Write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(ReadCpuQuota(root_), 0.5);
}

}  // namespace
}  // namespace switchyard
