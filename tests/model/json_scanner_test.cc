#include "model/json_scanner.h"

#include <string>

#include <gtest/gtest.h>

namespace switchyard::model {
namespace {

// Offset after the object that `text` begins with, -1 if it does not end, -2 if refused.
int ObjectEnd(std::string_view text, int max_depth = 3, int max_members = 3) {
  JsonScanner scanner(max_depth, max_members);
  for (size_t i = 0; i < text.size(); ++i) {
    const JsonScanner::State state = scanner.Take(text[i]);
    if (state == JsonScanner::State::kEnd) return static_cast<int>(i + 1);
    if (state == JsonScanner::State::kRefused) return -2;
  }
  return -1;
}

TEST(JsonScannerTest, FindsTheEndOfAnObject) {
  EXPECT_EQ(ObjectEnd("{}x"), 2);
  EXPECT_EQ(ObjectEnd(R"({"a": [{}]} {)"), 11);
  EXPECT_EQ(ObjectEnd(R"({"a"})"), 5);  // no JSON, but its brackets close
}

TEST(JsonScannerTest, StringsHideBrackets) {
  EXPECT_EQ(ObjectEnd(R"({"}": "{[\"}"})"), 14);
  EXPECT_EQ(ObjectEnd(R"({"a\\": 1})"), 10);
  EXPECT_EQ(ObjectEnd(R"({"a\"}")"), -1);
}

TEST(JsonScannerTest, RefusesWhatNoObjectBeginsWith) {
  EXPECT_EQ(ObjectEnd("[]"), -2);
  EXPECT_EQ(ObjectEnd(" {}"), -2);
  EXPECT_EQ(ObjectEnd("{]"), -2);
  EXPECT_EQ(ObjectEnd("{\"a\nb\": 1}"), -2);
}

TEST(JsonScannerTest, LimitsDepthAndMembers) {
  EXPECT_EQ(ObjectEnd("{[[]]}"), 6);
  EXPECT_EQ(ObjectEnd("{[[[]]]}"), -2);
  EXPECT_EQ(ObjectEnd("{:::}"), 5);
  EXPECT_EQ(ObjectEnd("{::::}"), -2);
}

std::string Nested(int depth, char open, char close) {
  return std::string(depth, open) + std::string(depth, close);
}

TEST(IsBoundedJsonTest, TakesEveryKindOfJsonAndNothingElse) {
  for (const char* const json : {"1", " -2.5e3\n", "true", "null", "\"a\"", "[]", "{\"a\": [1]}"}) {
    EXPECT_TRUE(IsBoundedJson(json)) << json;
  }
  for (const char* const text : {"", " ", "a", "1 2", "{} {}", "{}]", "[1,]", "{'a': 1}", "NaN",
                                 "1e999", "\"\xff\"", "[", "{\"a\": 1", "True"}) {
    EXPECT_FALSE(IsBoundedJson(text)) << text;
  }
}

TEST(IsBoundedJsonTest, AZeroByteIsNotTheEnd) {
  using std::string_view_literals::operator""sv;
  for (const std::string_view text : {"1\0"sv, "[1]\n\0x"sv, "{}\0"sv, "\0"sv, "\"a\0\""sv}) {
    EXPECT_FALSE(IsBoundedJson(text));
  }
}

TEST(IsBoundedJsonTest, LimitsListsAndObjectsAlike) {
  EXPECT_TRUE(IsBoundedJson(Nested(kMaxArgumentDepth, '[', ']')));
  EXPECT_FALSE(IsBoundedJson(Nested(kMaxArgumentDepth + 1, '[', ']')));
  std::string object = "1";
  for (int i = 0; i < kMaxArgumentDepth; ++i) object = "{\"k\": " + object + "}";
  EXPECT_TRUE(IsBoundedJson(object));
  EXPECT_FALSE(IsBoundedJson("{\"k\": " + object + "}"));
}

TEST(FindJsonMemberTest, GivesTheTextOfTheValue) {
  const std::string_view object =
      R"( { "a" : {"b": "}", "z": [1, {}]} , "b":-1.50,"c":"\"x\"" ,"d": [ ] , "e":null})";
  EXPECT_EQ(FindJsonMember(object, "a"), R"({"b": "}", "z": [1, {}]})");
  EXPECT_EQ(FindJsonMember(object, "b"), "-1.50");
  EXPECT_EQ(FindJsonMember(object, "c"), R"("\"x\"")");
  EXPECT_EQ(FindJsonMember(object, "d"), "[ ]");
  EXPECT_EQ(FindJsonMember(object, "e"), "null");
  EXPECT_EQ(FindJsonMember(object, "z"), std::nullopt);
  EXPECT_EQ(FindJsonMember("{}", "a"), std::nullopt);
}

TEST(FindJsonMemberTest, TheLastOfEqualKeysCounts) {
  EXPECT_EQ(FindJsonMember(R"({"a": 1, "a": 2})", "a"), "2");
}

}  // namespace
}  // namespace switchyard::model
