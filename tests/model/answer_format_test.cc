#include "model/answer_format.h"

#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

namespace switchyard::model {
namespace {

using Json = nlohmann::ordered_json;

ChatTemplate Template(const std::string& name) {
  std::ifstream file(std::string(SWITCHYARD_TEST_DATA) + "/chat_templates/" + name);
  EXPECT_TRUE(file.good()) << name;
  return *ChatTemplate::Parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

TEST(DetectToolFormatTest, TellsTheFamiliesApart) {
  EXPECT_EQ(DetectToolFormat(Template("tools_as_json.jinja")), ToolFormat::kJson);
  EXPECT_EQ(DetectToolFormat(Template("always_thinking.jinja")), ToolFormat::kJson);
  EXPECT_EQ(DetectToolFormat(Template("tools_as_tags.jinja")), ToolFormat::kTags);
  EXPECT_EQ(DetectToolFormat(Template("content_macro.jinja")), ToolFormat::kTags);
  EXPECT_EQ(DetectToolFormat(Template("reasoning_effort.jinja")), ToolFormat::kTags);
  EXPECT_EQ(DetectToolFormat(Template("demo.jinja")), ToolFormat::kTags);
}

TEST(DetectToolFormatTest, OtherTemplatesCountAsJson) {
  EXPECT_EQ(DetectToolFormat(ChatTemplate::BuiltInChatMl()), ToolFormat::kJson);
  EXPECT_EQ(DetectToolFormat(*ChatTemplate::Parse("")), ToolFormat::kJson);
  EXPECT_EQ(DetectToolFormat(*ChatTemplate::Parse("<function=f>{\"a\": 1}</function>")),
            ToolFormat::kJson);
}

bool Opens(const ChatTemplate& chat_template, const Json& enable_thinking,
           bool add_generation_prompt = true) {
  Json context = {{"messages", {{{"role", "user"}, {"content", "q <think>\n"}}}},
                  {"add_generation_prompt", add_generation_prompt}};
  if (!enable_thinking.is_null()) context["enable_thinking"] = enable_thinking;
  return OpensReasoning(*chat_template.Render(context));
}

TEST(OpensReasoningTest, FollowsTheGenerationPrompt) {
  EXPECT_TRUE(Opens(Template("content_macro.jinja"), nullptr));
  EXPECT_TRUE(Opens(Template("content_macro.jinja"), true));
  EXPECT_FALSE(Opens(Template("content_macro.jinja"), false));
  EXPECT_TRUE(Opens(Template("always_thinking.jinja"), false));
  EXPECT_FALSE(Opens(Template("tools_as_json.jinja"), true));
  EXPECT_FALSE(Opens(Template("tools_as_json.jinja"), false));
  EXPECT_FALSE(Opens(Template("tools_as_tags.jinja"), true));
  EXPECT_FALSE(Opens(Template("content_macro.jinja"), true, /*add_generation_prompt=*/false));
}

TEST(OpensReasoningTest, OnlyTheTemplateOpensIt) {
  const auto opens = [](const char* source) {
    return Opens(*ChatTemplate::Parse(source), nullptr);
  };
  EXPECT_FALSE(opens("{{ messages[0].content }}"));
  EXPECT_TRUE(opens("{{ messages[0].content }}<think>"));
  EXPECT_FALSE(opens("<think>{{ messages[0].content }}"));
  EXPECT_FALSE(opens(""));
}

}  // namespace
}  // namespace switchyard::model
