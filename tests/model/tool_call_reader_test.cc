#include "model/tool_call_reader.h"

#include <string>

#include <gtest/gtest.h>

namespace switchyard::model {
namespace {

using Json = nlohmann::ordered_json;
using State = ToolCallReader::State;

ToolSchemas Tools() {
  return ToolSchemas(Json::parse(R"([{"type": "function", "function": {"name": "w", "parameters":
      {"properties": {"z": {"type": "string"}, "n": {"type": "integer"}}}}}])"));
}

// "NAME ARGUMENTS | what follows", "inside", or "refused | what follows"; checked to be the same
// for the whole text and byte by byte.
std::string Read(std::string_view body, const ToolCallReader::Options& options) {
  const ToolSchemas schemas = Tools();
  const auto describe = [&](const ToolCallReader& reader, State state) -> std::string {
    const std::string rest(body.substr(reader.num_read()));
    if (state == State::kInside) return "inside";
    if (state == State::kRefused) return "refused | " + rest;
    return reader.name() + " " + reader.arguments() + " | " + rest;
  };
  ToolCallReader whole(options, schemas);
  const std::string result = describe(whole, whole.Read(body));
  ToolCallReader bytewise(options, schemas);
  State state = State::kInside;
  for (size_t size = 0; size <= body.size() && state == State::kInside; ++size) {
    state = bytewise.Read(body.substr(0, size));
  }
  EXPECT_EQ(describe(bytewise, state), result) << body;
  return result;
}

std::string ReadJson(std::string_view body) { return Read(body, {}); }
std::string ReadTags(std::string_view body) { return Read(body, {.format = ToolFormat::kTags}); }

TEST(ToolCallReaderTest, JsonArgumentsStayAsWritten) {
  EXPECT_EQ(ReadJson("\n{\"name\": \"w\", \"arguments\": {\"z\":  1.50, \"a\": \"\\u00e9 é\"}}\n<"),
            "w {\"z\":  1.50, \"a\": \"\\u00e9 é\"} | \n<");
  EXPECT_EQ(ReadJson(R"({"arguments": {"a": {"name": "x"}}, "name": "caf\u00e9"})"),
            "café {\"a\": {\"name\": \"x\"}} | ");
}

TEST(ToolCallReaderTest, JsonArgumentsMayBeAbsentOrInAString) {
  EXPECT_EQ(ReadJson(R"({"name": "w"})"), "w {} | ");
  EXPECT_EQ(ReadJson(R"({"name": "w", "arguments": null})"), "w {} | ");
  EXPECT_EQ(ReadJson(R"({"name": "w", "arguments": "{\"z\": 1}"})"), "w {\"z\": 1} | ");
}

TEST(ToolCallReaderTest, RefusesWhatIsNoJsonCall) {
  EXPECT_EQ(ReadJson(" tag"), "refused | tag");
  EXPECT_EQ(ReadJson("[]"), "refused | []");
  EXPECT_EQ(ReadJson("{'name': 'w'} x"), "refused |  x");
  EXPECT_EQ(ReadJson(R"({"arguments": {}})"), "refused | ");
  EXPECT_EQ(ReadJson(R"({"name": "", "arguments": {}})"), "refused | ");
  EXPECT_EQ(ReadJson(R"({"name": 5, "arguments": {}})"), "refused | ");
  EXPECT_EQ(ReadJson(R"({"name": "w", "arguments": [1]})"), "refused | ");
  EXPECT_EQ(ReadJson(R"({"name": "w", "arguments": "[1]"})"), "refused | ");
  EXPECT_EQ(ReadJson("{\"name\": \"w\n"), "refused | \n");
  EXPECT_EQ(ReadJson(R"({"name": "w", "arguments": {"a": {)"), "inside");
}

TEST(ToolCallReaderTest, JsonArgumentsAreLimited) {
  const auto call = [](int depth) {
    std::string arguments = "1";
    for (int i = 0; i < depth; ++i) arguments = "{\"k\": " + arguments + "}";
    return "{\"name\": \"w\", \"arguments\": " + arguments + "}";
  };
  EXPECT_EQ(ReadJson(call(kMaxArgumentDepth)).substr(0, 3), "w {");
  EXPECT_EQ(ReadJson(call(kMaxArgumentDepth + 1)).substr(0, 7), "refused");
  const auto with_members = [](int count) {
    std::string arguments;
    for (int i = 0; i < count; ++i) arguments += ", \"" + std::to_string(i) + "\": 0";
    return "{\"name\": \"w\", \"arguments\": {" + arguments.substr(2) + "}}";
  };
  EXPECT_EQ(ReadJson(with_members(kMaxArgumentMembers)).substr(0, 3), "w {");
  EXPECT_EQ(ReadJson(with_members(kMaxArgumentMembers + 1)).substr(0, 7), "refused");
}

TEST(ToolCallReaderTest, TagsBecomeJsonInOrder) {
  EXPECT_EQ(
      ReadTags("\n<function=w>\n<parameter=z>\n12\n</parameter>\n<parameter=n>\n12\n"
               "</parameter>\n<parameter=a>\n{\"y\": 1, \"b\": 2}\n</parameter>\n</function>\n"
               "</tool_call>"),
      "w {\"z\": \"12\", \"n\": 12, \"a\": {\"y\": 1, \"b\": 2}} | \n</tool_call>");
  EXPECT_EQ(ReadTags("<function=other></function>"), "other {} | ");
}

TEST(ToolCallReaderTest, OneNewlineAtEachEndOfAValueBelongsToTheFormat) {
  EXPECT_EQ(ReadTags("<function=w><parameter=z>\n\n a\n\n</parameter></function>"),
            "w {\"z\": \"\\n a\\n\"} | ");
  EXPECT_EQ(ReadTags("<function=w><parameter=z>inline</parameter></function>"),
            "w {\"z\": \"inline\"} | ");
  EXPECT_EQ(ReadTags("<function=w><parameter=z>\n\n</parameter></function>"), "w {\"z\": \"\"} | ");
  EXPECT_EQ(ReadTags("<function=w><parameter=z>\n</parameter></function>"), "w {\"z\": \"\"} | ");
}

TEST(ToolCallReaderTest, ValuesMayQuoteTags) {
  EXPECT_EQ(ReadTags("<function=w><parameter=z>\na </parameter> b</function> <parameter=q>\n"
                     "</parameter>\n</function>"),
            "w {\"z\": \"a </parameter> b</function> <parameter=q>\"} | ");
}

TEST(ToolCallReaderTest, AValueMayLackItsEnd) {
  EXPECT_EQ(ReadTags("<function=w>\n<parameter=z>\nx\n</function>\n</tool_call>\n"),
            "w {\"z\": \"x\"} | </tool_call>\n");
}

TEST(ToolCallReaderTest, TheLastOfEqualKeysCounts) {
  EXPECT_EQ(ReadTags("<function=w><parameter=z>1</parameter><parameter=n>2</parameter>"
                     "<parameter=z>3</parameter></function>"),
            "w {\"z\": \"3\", \"n\": 2} | ");
}

TEST(ToolCallReaderTest, RefusesWhatIsNoTaggedCall) {
  EXPECT_EQ(ReadTags(" {\"name\": \"w\"}"), "refused | {\"name\": \"w\"}");
  EXPECT_EQ(ReadTags("<function=>"), "refused | >");
  EXPECT_EQ(ReadTags("<function=a\nb>"), "refused | \nb>");
  EXPECT_EQ(ReadTags("<function=w> x"), "refused | x");
  EXPECT_EQ(ReadTags("<function=w></tool_call>"), "refused | </tool_call>");
  EXPECT_EQ(ReadTags("<function=w><parameter=>"), "refused | >");
  EXPECT_EQ(ReadTags("<function=w><parameter=z>1</parameter>"), "inside");
  EXPECT_EQ(ReadTags("<function=w><parameter=z>1</function>"), "inside");
  const std::string longest(kMaxToolNameBytes, 'n');
  EXPECT_EQ(ReadTags("<function=" + longest + "></function>"), longest + " {} | ");
  EXPECT_EQ(ReadTags("<function=" + longest + "n></function>"), "refused | n></function>");
}

TEST(ToolCallReaderTest, TooManyParametersAreRefused) {
  std::string call = "<function=w>";
  for (int i = 0; i < kMaxArgumentMembers; ++i) {
    call += "<parameter=" + std::to_string(i) + ">0</parameter>";
  }
  const ToolSchemas schemas = Tools();
  ToolCallReader fits({.format = ToolFormat::kTags}, schemas);
  EXPECT_EQ(fits.Read(call + "</function>"), State::kDone);
  ToolCallReader too_many({.format = ToolFormat::kTags}, schemas);
  EXPECT_EQ(too_many.Read(call + "<parameter=x>0</parameter></function>"), State::kRefused);
}

TEST(ToolCallReaderTest, MayAskForAKnownTool) {
  const ToolCallReader::Options tags = {
      .format = ToolFormat::kTags, .after_function_tag = true, .known_tools_only = true};
  EXPECT_EQ(Read("w></function>", tags), "w {} | ");
  EXPECT_EQ(Read("v></function>", tags), "refused | ></function>");
  EXPECT_EQ(Read(R"({"name": "v"})", {.known_tools_only = true}), "refused | ");
  EXPECT_EQ(Read(R"({"name": "w"})", {.known_tools_only = true}), "w {} | ");
}

TEST(ToolCallReaderTest, ForbiddenTextEndsTheCall) {
  EXPECT_EQ(Read("<function=w><parameter=z>a</think>b",
                 {.format = ToolFormat::kTags, .forbidden = "</think>"}),
            "refused | </think>b");
}

}  // namespace
}  // namespace switchyard::model
