// JSON of requests, and the YAML that describes them.
#include <array>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/error_info.h"
#include "base/status.h"
#include "coordinator/http/json_fields.h"
#include "coordinator/http/json_text.h"
#include "coordinator/http/yaml_reader.h"

namespace switchyard::coordinator::http {
namespace {

using ::testing::HasSubstr;

TEST(JsonTextTest, KeepsTheOrderOfKeys) {
  const auto json = ParseJson(R"({"z":1,"a":{"y":2,"b":3}})");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(JsonText(*json), R"({"z":1,"a":{"y":2,"b":3}})");
}

TEST(JsonTextTest, LimitsDepthMembersAndContainers) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(ParseJson(nested(kMaxJsonDepth)).ok());
  EXPECT_FALSE(ParseJson(nested(kMaxJsonDepth + 1)).ok());
  EXPECT_FALSE(ParseJson(std::string(5'000'000, '[')).ok());
  const auto object = [](int members) {
    std::string text = "{";
    for (int i = 0; i < members; ++i) text += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
    return text + "}";
  };
  EXPECT_TRUE(ParseJson(object(kMaxJsonMembers)).ok());
  EXPECT_FALSE(ParseJson(object(kMaxJsonMembers + 1)).ok());
  std::string large = "[" + object(kMaxJsonMembers);
  for (int i = 0; i < 40; ++i) large += "," + object(kMaxJsonMembers);
  EXPECT_FALSE(ParseJson(large + "]").ok());
  std::string many = "[[]";
  for (int i = 0; i < kMaxJsonContainers; ++i) many += ",[]";
  EXPECT_FALSE(ParseJson(many + "]").ok());
  // What is in strings does not count, and lists may be long.
  EXPECT_TRUE(ParseJson("\"" + std::string(1000, '[') + "\\\"{\"").ok());
  std::string list = "[0";
  for (int i = 0; i < 100000; ++i) list += ",0";
  EXPECT_TRUE(ParseJson(list + "]").ok());
}

TEST(JsonTextTest, RefusesWhatIsNoJson) {
  for (const char* text : {"", " ", "{", "]", "{]", "nul", "NaN", "1e999", "-", "\"\xff\"",
                           "\"\\ud800\"", "{\"a\":1,}", "{} x", "'a'"}) {
    EXPECT_FALSE(ParseJson(text).ok()) << text;
  }
}

TEST(JsonTextTest, WritesBytesThatAreNoUtf8) {
  EXPECT_EQ(JsonText(Json("a\xff")), "\"a\xEF\xBF\xBD\"");
}

TEST(JsonFieldsTest, ReadsEachTypeAndTreatsNullAsAbsent) {
  const Json json = *ParseJson(
      R"({"b":true,"i":5,"f":6.0,"n":0.5,"s":"x","u":18446744073709551615,"z":null,"l":[],"o":{}})");
  JsonFields fields(json);
  EXPECT_EQ(fields.Bool("b"), true);
  EXPECT_EQ(fields.Integer("i", 0, 10), 5);
  EXPECT_EQ(fields.Integer("f", 0, 10), 6);
  EXPECT_EQ(fields.Number("n", 0, 1), 0.5f);
  EXPECT_EQ(fields.String("s"), "x");
  EXPECT_EQ(fields.Unsigned("u"), 18446744073709551615u);
  EXPECT_NE(fields.Array("l"), nullptr);
  EXPECT_NE(fields.Object("o"), nullptr);
  EXPECT_EQ(fields.Bool("z"), std::nullopt);
  EXPECT_EQ(fields.Integer("absent", 0, 1), std::nullopt);
  EXPECT_TRUE(fields.ok());
}

TEST(JsonFieldsTest, FirstErrorStaysAndNamesItsField) {
  const Json json = *ParseJson(R"({"a":-1,"b":"x"})");
  JsonFields fields(json, "outer");
  EXPECT_EQ(fields.Integer("a", 0, 10), std::nullopt);
  EXPECT_EQ(fields.Bool("b"), std::nullopt);
  EXPECT_EQ(FieldOf(fields.status()), "outer.a");
  EXPECT_THAT(std::string(Message(fields.status())), HasSubstr("outer.a must be an integer"));
}

TEST(JsonFieldsTest, RefusesNumbersThatAreNoIntegerInRange) {
  for (const char* text :
       {"1.5", "1e300", "-1e300", "9223372036854775808", "-1", "11", "\"5\"", "true", "[]"}) {
    const Json json = *ParseJson(std::string("{\"a\":") + text + "}");
    JsonFields fields(json);
    EXPECT_EQ(fields.Integer("a", 0, 10), std::nullopt) << text;
    EXPECT_FALSE(fields.ok()) << text;
  }
}

TEST(YamlReaderTest, ReadsWhatItSays) {
  const auto yaml = ReadYaml(R"(# comment
a: 1
b: -2.5      # trailing
c: text with spaces
"d e": 'quoted: #1'
f: [1, two, "three, four"]
g: {h: 1, i: [a, b], j: "k: l"}
m:
  n: true
  o:
    - first
    - p: 1
      q:
        - 2
    - {r: s}
t:
- u
v: >-
  folded
  text
w: |
  two
    lines
x:
y: "3"
)");
  ASSERT_TRUE(yaml.ok()) << yaml.status();
  EXPECT_EQ(*yaml, *ParseJson(R"({"a": 1, "b": -2.5, "c": "text with spaces",
    "d e": "quoted: #1", "f": [1, "two", "three, four"],
    "g": {"h": 1, "i": ["a", "b"], "j": "k: l"},
    "m": {"n": true, "o": ["first", {"p": 1, "q": [2]}, {"r": "s"}]},
    "t": ["u"], "v": "folded text", "w": "two\n  lines\n", "x": null, "y": "3"})"));
}

TEST(YamlReaderTest, RefusesWhatItDoesNotRead) {
  for (const char* text : {"a", "a: 1\na: 2", "a:\n  b: 1\n   c: 2", "a: [1", "a: \"x", "a: &x 1",
                           "a: b: c", "a: *x", "- a\nb: 1", "a: {b}", "-\n  a"}) {
    EXPECT_FALSE(ReadYaml(text).ok()) << text;
  }
}

// The description as another reader of YAML sees it.
TEST(YamlReaderTest, AgreesWithPythonOnTheDescriptionOfTheApi) {
  const std::string path = std::string(SWITCHYARD_SOURCE_DIR) + "/docs/openapi.yaml";
  const std::string command =
      "/usr/bin/python3 -c 'import json, sys, yaml; "
      "print(json.dumps(yaml.safe_load(open(sys.argv[1]))))' " +
      path + " 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  ASSERT_NE(pipe, nullptr);
  std::string oracle;
  std::array<char, 65536> bytes{};
  while (const size_t got = fread(bytes.data(), 1, bytes.size(), pipe.get())) {
    oracle.append(bytes.data(), got);
  }
  if (oracle.empty()) GTEST_SKIP() << "no Python with PyYAML";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto yaml = ReadYaml(text);
  ASSERT_TRUE(yaml.ok()) << yaml.status();
  EXPECT_TRUE(*yaml == *ParseJson(oracle)) << "compare /openapi.json with a reader of YAML";
}

}  // namespace
}  // namespace switchyard::coordinator::http
