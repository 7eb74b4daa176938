#include "model/tool_schemas.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "model/json_scanner.h"

namespace switchyard::model {
namespace {

using Json = nlohmann::ordered_json;

// One tool "f" whose parameter "p" has this schema.
ToolSchemas WithParameter(const char* schema) {
  Json parameters = {{"type", "object"},
                     {"$defs", Json::parse(R"({"Color": {"enum": ["red", "blue"]},
                                               "Count": {"type": "integer"},
                                               "Loop": {"$ref": "#/$defs/Loop"}})")},
                     {"properties", {{"p", Json::parse(schema)}}}};
  return ToolSchemas(
      Json::array({{{"type", "function"},
                    {"function", {{"name", "f"}, {"parameters", std::move(parameters)}}}}}));
}

std::string Convert(const char* schema, std::string_view text) {
  return WithParameter(schema).ArgumentJson("f", "p", text);
}

TEST(ToolSchemasTest, StringStaysAString) {
  const char* const schema = R"({"type": "string"})";
  EXPECT_EQ(Convert(schema, "12"), R"("12")");
  EXPECT_EQ(Convert(schema, R"({"a": "é<b>"})"), R"("{\"a\": \"é<b>\"}")");
  EXPECT_EQ(Convert(schema, " null\n"), R"(" null\n")");
  EXPECT_EQ(Convert(schema, "\"quoted\""), R"("\"quoted\"")");
  EXPECT_EQ(Convert(schema, ""), R"("")");
}

TEST(ToolSchemasTest, OtherTypesAreTakenAsWritten) {
  EXPECT_EQ(Convert(R"({"type": "integer"})", " 12345678901234567890123 "),
            "12345678901234567890123");
  EXPECT_EQ(Convert(R"({"type": "integer"})", "5.0"), "5.0");
  EXPECT_EQ(Convert(R"({"type": "number"})", "-1.50e3"), "-1.50e3");
  EXPECT_EQ(Convert(R"({"type": "number"})", "7"), "7");
  EXPECT_EQ(Convert(R"({"type": "boolean"})", "true"), "true");
  EXPECT_EQ(Convert(R"({"type": "null"})", "null"), "null");
  EXPECT_EQ(Convert(R"({"type": "object"})", "{\"z\": 1,\n \"a\": [2]}"),
            "{\"z\": 1,\n \"a\": [2]}");
  EXPECT_EQ(Convert(R"({"type": "array"})", "[1, \"é\"]"), "[1, \"é\"]");
}

TEST(ToolSchemasTest, PythonsConstantsCountWhereTheirTypeIsAllowed) {
  EXPECT_EQ(Convert(R"({"type": "boolean"})", "False"), "false");
  EXPECT_EQ(Convert(R"({"type": "boolean"})", "TRUE"), "true");
  EXPECT_EQ(Convert(R"({"type": ["integer", "null"]})", "None"), "null");
  EXPECT_EQ(Convert(R"({"type": "integer"})", "None"), R"("None")");
  EXPECT_EQ(Convert(R"({"type": "string"})", "None"), R"("None")");
  EXPECT_EQ(Convert("{}", "True"), R"("True")");
}

TEST(ToolSchemasTest, WhatIsOfNoAllowedTypeIsAString) {
  EXPECT_EQ(Convert(R"({"type": "integer"})", "1.5"), R"("1.5")");
  EXPECT_EQ(Convert(R"({"type": "integer"})", "five"), R"("five")");
  EXPECT_EQ(Convert(R"({"type": "number"})", "NaN"), R"("NaN")");
  EXPECT_EQ(Convert(R"({"type": "number"})", "null"), R"("null")");
  EXPECT_EQ(Convert(R"({"type": "object"})", "[1]"), R"("[1]")");
  EXPECT_EQ(Convert(R"({"type": "object"})", "{'a': 1}"), R"("{'a': 1}")");
  EXPECT_EQ(Convert(R"({"type": "array"})", "[1"), R"("[1")");
}

TEST(ToolSchemasTest, UnionsPreferWhatIsNoString) {
  const char* const optional = R"({"anyOf": [{"type": "string"}, {"type": "null"}]})";
  EXPECT_EQ(Convert(optional, "null"), "null");
  EXPECT_EQ(Convert(optional, "5"), R"("5")");
  EXPECT_EQ(Convert(optional, "\"q\""), R"("\"q\"")");
  EXPECT_EQ(Convert(R"({"type": ["string", "integer"]})", "5"), "5");
  EXPECT_EQ(Convert(R"({"oneOf": [{"type": "integer"}, {}]})", "[5]"), "[5]");
}

TEST(ToolSchemasTest, TypesComeFromValuesAndReferences) {
  EXPECT_EQ(Convert(R"({"enum": ["1", "2"]})", "1"), R"("1")");
  EXPECT_EQ(Convert(R"({"enum": [1, 2]})", "1"), "1");
  EXPECT_EQ(Convert(R"({"const": "7"})", "7"), R"("7")");
  EXPECT_EQ(Convert(R"({"$ref": "#/$defs/Color"})", "12"), R"("12")");
  EXPECT_EQ(Convert(R"({"$ref": "#/$defs/Count"})", "12"), "12");
  EXPECT_EQ(Convert(R"({"allOf": [{"$ref": "#/$defs/Color"}], "default": "red"})", "3"), R"("3")");
  // A reference that leads nowhere says nothing.
  EXPECT_EQ(Convert(R"({"$ref": "#/$defs/Loop"})", "12"), "12");
  EXPECT_EQ(Convert(R"({"$ref": "#/$defs/None"})", "12"), "12");
  EXPECT_EQ(Convert(R"({"$ref": "https://example.com"})", "x"), R"("x")");
}

TEST(ToolSchemasTest, UnknownParametersTakeAnyJson) {
  const ToolSchemas schemas = WithParameter(R"({"type": "string"})");
  EXPECT_EQ(schemas.ArgumentJson("f", "other", " {\"a\": 1} "), "{\"a\": 1}");
  EXPECT_EQ(schemas.ArgumentJson("f", "other", "\"a\""), "\"a\"");
  EXPECT_EQ(schemas.ArgumentJson("f", "other", "a b"), "\"a b\"");
  EXPECT_EQ(schemas.ArgumentJson("unknown", "p", "12"), "12");
}

TEST(ToolSchemasTest, JsonBeyondTheLimitsIsAString) {
  const std::string deep =
      std::string(kMaxArgumentDepth + 1, '[') + std::string(kMaxArgumentDepth + 1, ']');
  EXPECT_EQ(Convert(R"({"type": "array"})", deep), "\"" + deep + "\"");
}

TEST(ToolSchemasTest, TakesBothFormsOfToolsAndPassesOverOthers) {
  const ToolSchemas schemas(Json::parse(R"([
      {"name": "plain", "parameters": {"properties": {"n": {"type": "string"}}}},
      {"type": "function", "function": {"name": "bare"}},
      {"type": "function", "function": {"name": 3}}, {"type": "web_search"}, null, 7,
      {"name": "odd", "parameters": {"properties": [1]}}])"));
  EXPECT_TRUE(schemas.Contains("plain"));
  EXPECT_TRUE(schemas.Contains("bare"));
  EXPECT_TRUE(schemas.Contains("odd"));
  EXPECT_FALSE(schemas.Contains("web_search"));
  EXPECT_EQ(schemas.ArgumentJson("plain", "n", "1"), R"("1")");
  EXPECT_TRUE(ToolSchemas(nullptr).empty());
  EXPECT_TRUE(ToolSchemas(Json::array()).empty());
}

// Each definition refers to the one below it many times.
TEST(ToolSchemasTest, ReferencesDoNotMultiply) {
  Json definitions;
  for (int i = 0; i < 8; ++i) {
    Json options = Json::array();
    for (int j = 0; j < 100; ++j) options.push_back({{"$ref", "#/$defs/" + std::to_string(i + 1)}});
    definitions[std::to_string(i)] = {{"anyOf", options}};
  }
  const ToolSchemas schemas(Json::array(
      {{{"name", "f"},
        {"parameters",
         {{"$defs", definitions}, {"properties", {{"p", {{"$ref", "#/$defs/0"}}}}}}}}}));
  EXPECT_EQ(schemas.ArgumentJson("f", "p", "12"), "12");
}

}  // namespace
}  // namespace switchyard::model
