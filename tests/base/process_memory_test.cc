#include "base/process_memory.h"

#include <cstdint>
#include <optional>

#include <gtest/gtest.h>

namespace switchyard {
namespace {

TEST(ProcessMemoryTest, ParsesTheThreeParts) {
  const absl::StatusOr<ProcessMemory> memory = ParseProcessMemory(
      "Name:\tswitchyard\nVmRSS:\t    1234 kB\nRssAnon:\t    1000 kB\nRssFile:\t     200 kB\n"
      "RssShmem:\t      34 kB\n");
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->anonymous_bytes, 1000 * 1024);
  EXPECT_EQ(memory->file_bytes, 200 * 1024);
  EXPECT_EQ(memory->shared_bytes, 34 * 1024);
  EXPECT_EQ(memory->resident_bytes(), 1234 * 1024);
}

TEST(ProcessMemoryTest, RefusesMissingOrOddLines) {
  for (const char* text : {
           "",
           "RssAnon: 1 kB\nRssFile: 1 kB\n",
           "RssAnon: 1 kB\nRssFile: 1 kB\nRssShmem: 1 MB\n",
           "RssAnon: 1 kB\nRssFile: kB\nRssShmem: 1 kB\n",
           "RssAnon: 1x kB\nRssFile: 1 kB\nRssShmem: 1 kB\n",
           "RssAnon: -1 kB\nRssFile: 1 kB\nRssShmem: 1 kB\n",
           "XRssAnon: 1 kB\nRssFile: 1 kB\nRssShmem: 1 kB\n",
       }) {
    EXPECT_EQ(ParseProcessMemory(text).status().code(), absl::StatusCode::kDataLoss) << text;
  }
}

TEST(ProcessMemoryTest, ThisProcessHasMemory) {
  const absl::StatusOr<ProcessMemory> memory = ReadProcessMemory();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_GT(memory->anonymous_bytes, 0);
  EXPECT_GT(memory->file_bytes, 0);  // the program's own text
}

TEST(AvailableHostBytesTest, ParsesMemAvailable) {
  EXPECT_EQ(ParseAvailableHostBytes("MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:   5 kB\n"),
            5 * 1024);
  EXPECT_EQ(ParseAvailableHostBytes("MemTotal: 9 kB\n"), std::nullopt);
  EXPECT_GT(AvailableHostBytes().value_or(0), 0);
}

}  // namespace
}  // namespace switchyard
