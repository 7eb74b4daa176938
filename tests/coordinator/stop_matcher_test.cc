#include "coordinator/stop_matcher.h"

#include <random>

#include "gtest/gtest.h"

namespace switchyard::coordinator {
namespace {

TEST(StopMatcherTest, PassesTextWithoutStops) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.Push("abc"), "abc");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcherTest, FindsAStopOverPieces) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.Push("textE"), "text");
  EXPECT_EQ(matcher.Push("N"), "");
  EXPECT_EQ(matcher.Push("D more"), "");
  EXPECT_TRUE(matcher.has_match());
  EXPECT_EQ(matcher.matched(), "END");
  EXPECT_EQ(matcher.Push("later"), "");
}

TEST(StopMatcherTest, ReleasesWhatIsNoStop) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.Push("E"), "");
  EXPECT_EQ(matcher.Push("x"), "Ex");
  EXPECT_EQ(matcher.Push("EN"), "");
  EXPECT_EQ(matcher.Flush(), "EN");
  EXPECT_FALSE(matcher.has_match());
}

TEST(StopMatcherTest, FirstCompleteStopWinsAndTheLongestOfThose) {
  StopMatcher matcher({"cd", "bcd", "bcde"});
  EXPECT_EQ(matcher.Push("abcde"), "a");
  EXPECT_EQ(matcher.matched(), "bcd");
}

TEST(StopMatcherTest, HoldsSelfOverlappingPrefixes) {
  StopMatcher matcher({"aab"});
  EXPECT_EQ(matcher.Push("aa"), "");
  EXPECT_EQ(matcher.Push("a"), "a");
  EXPECT_EQ(matcher.Push("b"), "");
  EXPECT_EQ(matcher.matched(), "aab");
}

// Position and length of the stop that is complete first; the longest of those that end together.
std::pair<size_t, size_t> FirstStop(const std::string& text,
                                    const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return {end - longest, longest};
  }
  return {text.size(), 0};
}

TEST(StopMatcherTest, ResultDoesNotDependOnTheCuts) {
  std::mt19937 random(7);
  const std::vector<std::string> stops = {"abba", "bab", "bb", "aaaa"};
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += static_cast<char>('a' + random() % 2);
    const auto [at, length] = FirstStop(text, stops);

    StopMatcher matcher(stops);
    std::string out;
    for (size_t i = 0; i < text.size();) {
      const size_t n = 1 + random() % 4;
      out += matcher.Push(text.substr(i, n));
      i += n;
    }
    out += matcher.Flush();
    ASSERT_EQ(out, text.substr(0, at)) << text;
    ASSERT_EQ(matcher.matched(), text.substr(at, length)) << text;
  }
}

}  // namespace
}  // namespace switchyard::coordinator
