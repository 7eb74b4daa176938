#include "base/log.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::Not;

class LogTest : public testing::Test {
 protected:
  void TearDown() override { InitLogging({}); }

  template <typename Body>
  std::string ErrorOutputOf(Body body) {
    testing::internal::CaptureStderr();
    body();
    return testing::internal::GetCapturedStderr();
  }
};

TEST_F(LogTest, WritesTimeLevelAndText) {
  const std::string line = ErrorOutputOf([] { LogWarning("{} of {} cores", 2, 4); });
  EXPECT_THAT(line, MatchesRegex("[0-9:.]+ warning 2 of 4 cores\n"));
}

TEST_F(LogTest, WritesNothingToStandardOutput) {
  testing::internal::CaptureStdout();
  ErrorOutputOf([] { LogError("on the other channel"); });
  EXPECT_THAT(testing::internal::GetCapturedStdout(), IsEmpty());
}

TEST_F(LogTest, DropsLinesBelowTheThreshold) {
  const auto write_all = [] {
    LogDebug("a debug line");
    LogInfo("an info line");
    LogWarning("a warning line");
    LogError("an error line");
  };
  std::string text = ErrorOutputOf(write_all);
  EXPECT_THAT(text, Not(HasSubstr("a debug line")));
  EXPECT_THAT(text, HasSubstr("an info line"));
  InitLogging({.threshold = LogLevel::kError});
  EXPECT_FALSE(LogEnabled(LogLevel::kWarning));
  text = ErrorOutputOf(write_all);
  EXPECT_THAT(text, Not(HasSubstr("a warning line")));
  EXPECT_THAT(text, HasSubstr("an error line"));
  InitLogging({.threshold = LogLevel::kOff});
  EXPECT_THAT(ErrorOutputOf(write_all), IsEmpty());
  InitLogging({.threshold = LogLevel::kDebug});
  EXPECT_THAT(ErrorOutputOf(write_all), HasSubstr("a debug line"));
}

TEST_F(LogTest, BracesInTextAreText) {
  EXPECT_THAT(ErrorOutputOf([] { WriteLog(LogLevel::kInfo, "{} {0} {broken"); }),
              HasSubstr("{} {0} {broken\n"));
  EXPECT_THAT(ErrorOutputOf([] { LogInfo("{}", "{}"); }), HasSubstr("info {}\n"));
}

TEST_F(LogTest, ColoursOnlyOnDemand) {
  EXPECT_THAT(ErrorOutputOf([] { LogError("plain"); }), Not(HasSubstr("\x1b[")));
  InitLogging({.color = true});
  EXPECT_THAT(ErrorOutputOf([] { LogError("red"); }), HasSubstr("\x1b["));
}

}  // namespace
}  // namespace switchyard
