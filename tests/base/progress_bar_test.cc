#include "base/progress_bar.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"

namespace switchyard {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class ManualClock final : public Clock {
 public:
  double NowSeconds() const override { return now_seconds; }
  double now_seconds = 100;
};

class ProgressBarTest : public testing::Test {
 protected:
  ~ProgressBarTest() override {
    std::fclose(out_);
    std::free(text_);
  }

  ProgressBar::Options Enabled() const {
    return {.enabled = true, .bar_width = 10, .out = out_, .seconds_between_lines = 0.1};
  }

  // What was written since the last call.
  std::string Written() {
    std::fflush(out_);
    std::string all(text_, size_);
    std::string fresh = all.substr(seen_);
    seen_ = all.size();
    return fresh;
  }

  ManualClock clock_;
  char* text_ = nullptr;
  size_t size_ = 0;
  size_t seen_ = 0;
  std::FILE* out_ = open_memstream(&text_, &size_);
};

TEST_F(ProgressBarTest, WritesNothingUnlessEnabled) {
  {
    ProgressBar bar("load", 100, {.out = out_}, clock_);
    bar.Set(50);
    bar.Set(100);
  }
  EXPECT_THAT(Written(), IsEmpty());
}

TEST_F(ProgressBarTest, ShowsShareAmountRateAndTimeLeft) {
  ProgressBar bar("load", 4'000'000'000, Enabled(), clock_);
  clock_.now_seconds += 2;
  bar.Set(1'000'000'000);  // 500 MB/s, so 3 GB take 6 s more
  EXPECT_EQ(Written(), "\rload [==        ]  25 % 1.00 GB of 4.00 GB, 500 MB/s, 0:06 left\x1b[K");
}

TEST_F(ProgressBarTest, CountsTokens) {
  ProgressBar::Options options = Enabled();
  options.unit = ProgressBar::Unit::kTokens;
  ProgressBar bar("prefill", 4096, options, clock_);
  clock_.now_seconds += 1;
  bar.Add(1000);
  bar.Add(1048);
  EXPECT_THAT(Written(), HasSubstr(" 1.00K of 4.10K tokens, 1.00K tokens/s, 0:04 left"));
}

TEST_F(ProgressBarTest, RedrawsSeldomButAlwaysAtTheEnd) {
  ProgressBar bar("load", 100, Enabled(), clock_);
  bar.Set(1);
  EXPECT_THAT(Written(), HasSubstr("1 %"));
  bar.Set(2);
  clock_.now_seconds += 0.05;
  bar.Set(3);
  EXPECT_THAT(Written(), IsEmpty());
  clock_.now_seconds += 0.06;
  bar.Set(4);
  EXPECT_THAT(Written(), HasSubstr("4 %"));
  bar.Set(100);
  EXPECT_THAT(Written(), HasSubstr("[==========] 100 %"));
}

TEST_F(ProgressBarTest, NeverShowsMoreThanAll) {
  ProgressBar bar("load", 100, Enabled(), clock_);
  bar.Set(250);
  EXPECT_THAT(Written(), HasSubstr("[==========] 100 % 100 B of 100 B"));
}

TEST_F(ProgressBarTest, EmptyTaskIsDone) {
  ProgressBar bar("load", 0, Enabled(), clock_);
  bar.Set(0);
  EXPECT_THAT(Written(), HasSubstr("100 %"));
}

TEST_F(ProgressBarTest, TakesItsLineAway) {
  {
    ProgressBar bar("load", 100, Enabled(), clock_);
    bar.Set(10);
  }
  EXPECT_THAT(Written(), EndsWith("\r\x1b[K"));
}

TEST_F(ProgressBarTest, ColoursOnDemand) {
  ProgressBar::Options options = Enabled();
  {
    ProgressBar bar("load", 100, options, clock_);
    bar.Set(10);
    EXPECT_THAT(Written(), Not(HasSubstr("\x1b[36m")));
  }
  options.color = true;
  ProgressBar bar("load", 100, options, clock_);
  bar.Set(10);
  EXPECT_THAT(Written(), HasSubstr("\x1b[36m"));
}

TEST(MonotonicClockTest, NeverGoesBack) {
  const double first = MonotonicClock::Get().NowSeconds();
  EXPECT_GE(MonotonicClock::Get().NowSeconds(), first);
}

}  // namespace
}  // namespace switchyard
