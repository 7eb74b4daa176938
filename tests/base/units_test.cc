#include "base/units.h"

#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace switchyard {
namespace {

TEST(ParseBytesTest, KnowsBinaryAndDecimalUnits) {
  const struct {
    const char* text;
    int64_t bytes;
  } kCases[] = {
      {"0", 0},
      {"4096", 4096},
      {"17b", 17},
      {"8k", 8 << 10},
      {"8K", 8 << 10},
      {"8KiB", 8 << 10},
      {"8kB", 8000},
      {"3M", 3 << 20},
      {"3MB", 3'000'000},
      {"4G", int64_t{4} << 30},
      {"24GiB", int64_t{24} << 30},
      {"24gib", int64_t{24} << 30},
      {" 24 GB ", 24'000'000'000},
      {"1.5 GiB", int64_t{3} << 29},
      {"1.5kB", 1500},
      {"0.0001k", 0},
      {"2T", int64_t{2} << 40},
      {"2TB", 2'000'000'000'000},
      {"8388607T", int64_t{8388607} << 40},  // the largest whole number of TiB below 2^63
  };
  for (const auto& [text, bytes] : kCases) {
    const absl::StatusOr<int64_t> parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ParseBytesTest, RefusesWhatIsNoSize) {
  for (const char* text :
       {"", " ", "k", "-1", "+1", "1e3", "0x10", "1x", "1kk", "1KiBs", "1 i", "1ib", "inf", "nan",
        "1,5k", ".5k", "1..5k", "8388608T", "99999999999999999999"}) {
    const absl::StatusOr<int64_t> parsed = ParseBytes(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ParseCountTest, KnowsPowersOf1024) {
  EXPECT_EQ(*ParseCount("96"), 96);
  EXPECT_EQ(*ParseCount("16k"), 16384);
  EXPECT_EQ(*ParseCount("128K"), 131072);
  EXPECT_EQ(*ParseCount("0.5k"), 512);
  EXPECT_EQ(*ParseCount("1M"), 1 << 20);
  for (const char* text : {"", "1.5", "-3", "2kB", "2KiB", "3b", "0.0001k", "9999999999T"}) {
    EXPECT_FALSE(ParseCount(text).ok()) << text;
  }
}

TEST(FormatBytesTest, ShowsThreeDigits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1000), "1.00 kB");
  EXPECT_EQ(FormatBytes(1.4e9), "1.40 GB");
  EXPECT_EQ(FormatBytes(93.97e9), "94.0 GB");
  EXPECT_EQ(FormatBytes(118e6), "118 MB");
  EXPECT_EQ(FormatBytes(-2.5e6), "-2.50 MB");
  EXPECT_EQ(FormatBytes(1e19), "10000 PB");  // no unit above: digits as needed
  EXPECT_EQ(FormatBytesPerSecond(13.2e9), "13.2 GB/s");
}

TEST(FormatBytesTest, RoundingCarriesIntoTheNextUnit) {
  EXPECT_EQ(FormatBytes(999.6e3), "1.00 MB");
  EXPECT_EQ(FormatBytes(9.996e3), "10.0 kB");
  EXPECT_EQ(FormatBytes(99.96e3), "100 kB");
}

TEST(FormatCountTest, ShowsThreeDigits) {
  EXPECT_EQ(FormatCount(96), "96");
  EXPECT_EQ(FormatCount(4096), "4.10K");
  EXPECT_EQ(FormatCount(122e9), "122G");
  EXPECT_EQ(FormatCount(3.5e6), "3.50M");
}

TEST(FormatSecondsTest, ChoosesTheUnit) {
  EXPECT_EQ(FormatSeconds(0), "0.00 s");
  EXPECT_EQ(FormatSeconds(1.25), "1.25 s");
  EXPECT_EQ(FormatSeconds(125.4), "125 s");
  EXPECT_EQ(FormatSeconds(0.0215), "21.5 ms");
  EXPECT_EQ(FormatSeconds(85e-6), "85.0 us");
  EXPECT_EQ(FormatSeconds(2e-9), "2.00 ns");
  EXPECT_EQ(FormatSeconds(0.9999), "1.00 s");
}

}  // namespace
}  // namespace switchyard
