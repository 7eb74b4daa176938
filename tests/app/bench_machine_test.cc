// What a benchmark's report says of the machine.
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/bench/foreign_cpu.h"
#include "app/bench/machine_description.h"
#include "app/bench/quiet_run.h"

namespace switchyard::app {
namespace {

// A machine that is made of files.
class BenchMachineTest : public ::testing::Test {
 protected:
  BenchMachineTest() {
    std::string name = (std::filesystem::temp_directory_path() / "machine_XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~BenchMachineTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  std::filesystem::path root_;
};

TEST_F(BenchMachineTest, DescribesWhatTheSystemShows) {
  Write("proc/cpuinfo",
        "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7R13 Processor\n");
  Write("proc/meminfo", "MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:    512 kB\n");
  const std::string cache = "sys/devices/system/cpu/cpu0/cache/";
  Write(cache + "index0/level", "1\n");
  Write(cache + "index0/type", "Data\n");
  Write(cache + "index0/size", "32K\n");
  Write(cache + "index0/shared_cpu_list", "0,24\n");
  Write(cache + "index1/level", "3\n");
  Write(cache + "index1/type", "Unified\n");
  Write(cache + "index1/size", "32768K\n");
  Write(cache + "index1/shared_cpu_list", "0-7\n");
  const MachineDescription machine = ReadMachineDescription(root_);
  EXPECT_EQ(machine.cpu_model, "AMD EPYC 7R13 Processor");
  EXPECT_EQ(machine.cpu_family, 25);
  EXPECT_EQ(machine.cpu_model_number, 1);
  EXPECT_EQ(machine.memory_bytes, 1024 << 10);
  EXPECT_EQ(machine.available_bytes, 512 << 10);
  ASSERT_EQ(machine.caches.size(), 2u);
  EXPECT_EQ(machine.caches[0].cpus, "0,24");
  EXPECT_EQ(machine.last_level_cache_bytes(), 32 << 20);
  const auto json = ToJson(machine);
  EXPECT_EQ(json["caches"][1]["bytes"], 32 << 20);
}

TEST_F(BenchMachineTest, AMachineThatShowsNothingIsNoError) {
  const MachineDescription machine = ReadMachineDescription(root_);
  EXPECT_EQ(machine.cpu_model, "");
  EXPECT_TRUE(machine.caches.empty());
  EXPECT_GT(machine.last_level_cache_bytes(), 0);
}

TEST(ForeignCpuTest, BusyTicksLeaveOutIdleAndWaiting) {
  EXPECT_EQ(ParseBusyTicks("cpu  1 2 4 100 200 8 16 32 5 5\ncpu0 9 9 9 9 9 9 9 9\n"), 63);
  EXPECT_EQ(ParseBusyTicks("cpu  1 2 4"), std::nullopt);
  EXPECT_EQ(ParseBusyTicks("cpu0 1 2 4 100 200 8 16 32"), std::nullopt);
  EXPECT_EQ(ParseBusyTicks(""), std::nullopt);
}

TEST_F(BenchMachineTest, TicksThatOthersUsedAreCounted) {
  const std::string stat = (root_ / "stat").string();
  Write("stat", "cpu  0 0 0 100 0 0 0 0 0 0\n");
  const ForeignCpuMeter meter(stat);
  EXPECT_EQ(meter.ForeignCpus(), 0);
  // 10^9 ticks are more than this process can have used itself.
  Write("stat", "cpu  1000000000 0 0 100 0 0 0 0 0 0\n");
  EXPECT_GT(meter.ForeignCpus(), 1);
  EXPECT_EQ(ForeignCpuMeter((root_ / "none").string()).ForeignCpus(), std::nullopt);
}

TEST(QuietRunTest, ABusyMachineIsMeasuredAgainAndThenMarked) {
  int num_calls = 0;
  const auto measure = [&]() -> absl::StatusOr<int> { return ++num_calls; };
  const auto loud = MeasureQuietly<int>(/*max_foreign_cpus=*/-1, measure);
  ASSERT_TRUE(loud.ok());
  EXPECT_EQ(num_calls, kQuietAttempts);
  EXPECT_FALSE(loud->is_quiet);
  EXPECT_EQ(loud->num_discarded, kQuietAttempts - 1);
  const auto quiet = MeasureQuietly<int>(/*max_foreign_cpus=*/1e9, measure);
  ASSERT_TRUE(quiet.ok());
  EXPECT_EQ(quiet->samples, kQuietAttempts + 1);
  EXPECT_TRUE(quiet->is_quiet);
  nlohmann::ordered_json row;
  AddQuiet(*quiet, row);
  EXPECT_EQ(row["discarded"], 0);
}

TEST(QuietRunTest, AnErrorEndsTheAttempts) {
  const auto failed =
      MeasureQuietly<int>(1, []() -> absl::StatusOr<int> { return absl::InternalError("broken"); });
  EXPECT_EQ(failed.status(), absl::InternalError("broken"));
}

}  // namespace
}  // namespace switchyard::app
