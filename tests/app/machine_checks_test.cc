#include "app/doctor/machine_checks.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard::app {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A machine that is made of files.
class MachineChecksTest : public ::testing::Test {
 protected:
  MachineChecksTest() {
    std::string name = (std::filesystem::temp_directory_path() / "machine_XXXXXX").string();
    root_ = mkdtemp(name.data());
    facts_.root = root_;
    facts_.cpu_level = kernels::cpu::CpuLevel::kAvx2;
    facts_.budget.num_threads = 4;
    facts_.budget.reason = "4 of 4 cores allowed";
    facts_.numa_nodes = {0};
    facts_.memory_bytes = int64_t{1} << 34;
    Write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
  }
  ~MachineChecksTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }

  void AddGpu(const std::string& address, const std::string& width) {
    const std::string folder = "sys/bus/pci/devices/" + address + "/";
    Write(folder + "vendor", "0x10de");
    Write(folder + "class", "0x030000");
    Write(folder + "current_link_width", width);
    Write(folder + "max_link_width", "16");
    Write(folder + "current_link_speed", "2.5 GT/s PCIe");
    Write(folder + "max_link_speed", "16.0 GT/s PCIe");
  }

  MachineCheck Find(const std::string& subject) const {
    for (const MachineCheck& check : CheckMachine(facts_)) {
      if (check.subject == subject) return check;
    }
    ADD_FAILURE() << "no check of " << subject;
    return {};
  }

  std::filesystem::path root_;
  MachineFacts facts_;
};

TEST_F(MachineChecksTest, GoodMachineNeedsNothing) {
  for (const MachineCheck& check : CheckMachine(facts_)) {
    EXPECT_EQ(check.result, CheckResult::kOk) << check.subject << ": " << check.finding;
    EXPECT_THAT(check.fix, IsEmpty()) << check.subject;
  }
}

TEST_F(MachineChecksTest, ScalarLevelIsAWarning) {
  facts_.cpu_level = kernels::cpu::CpuLevel::kScalar;
  EXPECT_EQ(Find("cpu level").result, CheckResult::kWarn);
}

TEST_F(MachineChecksTest, ThreadsSayWhyAndWarnAboveTheBudget) {
  EXPECT_THAT(Find("threads").finding, HasSubstr("4 of 4 cores allowed"));
  facts_.asked_threads = 8;
  EXPECT_EQ(Find("threads").result, CheckResult::kWarn);
  EXPECT_EQ(Find("threads").fix, "use -t 4");
  facts_.asked_threads = 2;
  EXPECT_EQ(Find("threads").result, CheckResult::kOk);
}

TEST_F(MachineChecksTest, HugePagesThatAreOffCanBeSwitchedOn) {
  Write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]");
  EXPECT_EQ(Find("huge pages").result, CheckResult::kWarn);
  EXPECT_THAT(Find("huge pages").fix, HasSubstr("madvise"));
  std::filesystem::remove_all(root_ / "sys");
  EXPECT_THAT(Find("huge pages").finding, HasSubstr("none"));
}

TEST_F(MachineChecksTest, SeveralNodesAreAWarning) {
  facts_.numa_nodes = {1, 3};
  EXPECT_THAT(Find("numa").fix, HasSubstr("--membind=1"));
}

TEST_F(MachineChecksTest, GpuWithoutDriverIsAFailure) {
  AddGpu("0000:41:00.0", "16");
  EXPECT_EQ(Find("gpu").result, CheckResult::kWarn);  // a build without CUDA
  facts_.has_cuda = true;
  EXPECT_EQ(Find("gpu").result, CheckResult::kFail);
  facts_.devices.resize(1);
  EXPECT_EQ(Find("gpu").result, CheckResult::kOk);
}

TEST_F(MachineChecksTest, NarrowLinkIsAWarningAndASlowIdleOneIsNot) {
  AddGpu("0000:41:00.0", "16");
  AddGpu("0000:42:00.0", "8");
  EXPECT_EQ(Find("pcie 0000:41:00.0").result, CheckResult::kOk);
  EXPECT_EQ(Find("pcie 0000:42:00.0").result, CheckResult::kWarn);
  EXPECT_THAT(Find("pcie 0000:42:00.0").finding, HasSubstr("x8 of x16"));
}

TEST_F(MachineChecksTest, MissingPeerAccessNamesThePair) {
  AddGpu("0000:41:00.0", "16");
  AddGpu("0000:42:00.0", "16");
  facts_.has_cuda = true;
  facts_.devices.resize(2);
  facts_.devices[1].device = 1;
  facts_.devices[0].peers = {1};
  EXPECT_THAT(Find("peer access").finding, HasSubstr("1->0"));
  facts_.devices[1].peers = {0};
  EXPECT_EQ(Find("peer access").result, CheckResult::kOk);
  EXPECT_EQ(Find("iommu").result, CheckResult::kOk);
  Write("sys/class/iommu/dmar0", "");
  EXPECT_EQ(Find("iommu").result, CheckResult::kWarn);
}

TEST_F(MachineChecksTest, LittleLockableMemoryMattersToGpusOnly) {
  facts_.memlock_bytes = 64 << 10;
  EXPECT_EQ(Find("memlock").result, CheckResult::kOk);
  facts_.devices.resize(1);
  EXPECT_EQ(Find("memlock").result, CheckResult::kWarn);
}

TEST(MachineFactsTest, ThisMachineCanBeRead) {
  const auto facts = ReadMachineFacts();
  ASSERT_TRUE(facts.ok());
  EXPECT_GE(facts->budget.num_threads, 1);
  EXPECT_GE(CheckMachine(*facts).size(), 7u);
}

}  // namespace
}  // namespace switchyard::app
