// Anthropic's API over real sockets.
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "coordinator/http/anthropic_input.h"
#include "surface_harness.h"

namespace switchyard::coordinator::http {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

Json Message(Json more = Json::object()) {
  Json body = {{"model", "fake-model"},
               {"max_tokens", 20},
               {"temperature", 0},
               {"messages", Json::array({{{"role", "user"}, {"content", "hello"}}})}};
  body.update(more);
  return body;
}

constexpr std::string_view kPrompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";

TEST(AnthropicApiTest, AnswersAMessage) {
  SurfaceHarness harness;
  harness.Start();
  const ClientResponse response = harness.Post("/v1/messages", Message());
  ASSERT_EQ(response.status, 200) << response.body;
  const Json json = Parse(response.body);
  EXPECT_EQ(json["type"], "message");
  EXPECT_EQ(json["role"], "assistant");
  EXPECT_THAT(json["id"].get<std::string>(), StartsWith("msg_"));
  EXPECT_EQ(json["content"],
            Json::array({{{"type", "text"}, {"text", harness.Expected(kPrompt, 20)}}}));
  EXPECT_EQ(json["stop_reason"], "max_tokens");
  EXPECT_EQ(json["stop_sequence"], nullptr);
  EXPECT_EQ(json["usage"]["input_tokens"], harness.Count(kPrompt));
  EXPECT_EQ(json["usage"]["cache_read_input_tokens"], 0);
  EXPECT_EQ(json["usage"]["output_tokens"], 20);
}

TEST(AnthropicApiTest, StreamsNamedEventsInOrder) {
  SurfaceHarness harness;
  harness.Start();
  const ClientResponse response = harness.Post("/v1/messages", Message({{"stream", true}}));
  EXPECT_TRUE(response.is_complete);
  std::vector<std::string> names;
  std::string text;
  Json last_delta;
  // Each event is "event: NAME\ndata: JSON\n\n", and the JSON says the name again.
  std::string_view rest = response.body;
  while (!rest.empty()) {
    const size_t end = rest.find("\n\n");
    ASSERT_NE(end, std::string_view::npos);
    const std::string_view event = rest.substr(0, end);
    rest.remove_prefix(end + 2);
    ASSERT_TRUE(event.starts_with("event: ")) << event;
    const std::string name(event.substr(7, event.find('\n') - 7));
    const Json data = Parse(event.substr(event.find("data: ") + 6));
    EXPECT_EQ(data["type"], name);
    if (name == "content_block_delta") text += data["delta"]["text"].get<std::string>();
    if (name == "message_delta") last_delta = data;
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  EXPECT_THAT(names,
              ElementsAre("message_start", "ping", "content_block_start", "content_block_delta",
                          "content_block_stop", "message_delta", "message_stop"));
  EXPECT_EQ(text, harness.Expected(kPrompt, 20));
  EXPECT_EQ(last_delta["delta"]["stop_reason"], "max_tokens");
  EXPECT_EQ(last_delta["usage"]["output_tokens"], 20);
}

TEST(AnthropicApiTest, StopSequencesAreNamed) {
  SurfaceHarness harness;
  harness.Start();
  const std::string stop = harness.Expected(kPrompt, 20).substr(5, 3);
  const Json json =
      Parse(harness.Post("/v1/messages", Message({{"stop_sequences", Json::array({stop})}})).body);
  EXPECT_EQ(json["stop_reason"], "stop_sequence");
  EXPECT_EQ(json["stop_sequence"], stop);
}

TEST(AnthropicApiTest, CountsTokensOfThePrompt) {
  SurfaceHarness harness;
  harness.Start();
  EXPECT_EQ(Parse(harness.Post("/v1/messages/count_tokens", Message()).body),
            (Json{{"input_tokens", harness.Count(kPrompt)}}));
}

TEST(AnthropicApiTest, ErrorsHaveItsShape) {
  SurfaceHarness harness;
  harness.Start();
  const struct {
    Json fields;
    int status;
    const char* type;
  } kCases[] = {
      {{{"max_tokens", nullptr}}, 400, "invalid_request_error"},
      {{{"max_tokens", 0}}, 400, "invalid_request_error"},
      {{{"model", "claude"}}, 404, "not_found_error"},
      {{{"messages", Json::array()}}, 400, "invalid_request_error"},
      {{{"messages", "hello"}}, 400, "invalid_request_error"},
      {{{"system", 5}}, 400, "invalid_request_error"},
      {{{"stop_sequences", "x"}}, 400, "invalid_request_error"},
      {{{"thinking", {{"type", "maybe"}}}}, 400, "invalid_request_error"},
      {{{"tool_choice", {{"type", "any"}}}}, 501, "invalid_request_error"},
      {{{"tools", Json::array({{{"type", "web_search_20250305"}, {"name", "w"}}})}},
       501,
       "invalid_request_error"},
      {{{"messages", Json::array({{{"role", "robot"}, {"content", "x"}}})}},
       400,
       "invalid_request_error"},
      {{{"messages",
         Json::array({{{"role", "user"}, {"content", Json::array({{{"type", "image"}}})}}})}},
       501,
       "invalid_request_error"},
      {{{"messages", Json::array({{{"role", "user"}, {"content", "x"}},
                                  {{"role", "assistant"}, {"content", "y"}}})}},
       501,
       "invalid_request_error"},
  };
  for (const auto& [fields, status, type] : kCases) {
    const ClientResponse response = harness.Post("/v1/messages", Message(fields));
    EXPECT_EQ(response.status, status) << fields << response.body;
    const Json json = Parse(response.body);
    EXPECT_EQ(json["type"], "error");
    EXPECT_EQ(json["error"]["type"], type) << response.body;
  }
}

TEST(AnthropicInputTest, BlocksBecomeMessagesOfATemplate) {
  const model::Tokenizer tokenizer = testing::ByteTokenizer();
  const model::ChatTemplate chat_template = model::ChatTemplate::BuiltInChatMl();
  const model::ModelSpec spec;
  const ServedModel model{.name = "m",
                          .spec = spec,
                          .tokenizer = tokenizer,
                          .chat_template = chat_template,
                          .digest = "",
                          .path_name = "",
                          .plan_id = ""};
  const Json body = Parse(R"({
    "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    "messages": [
      {"role": "user", "content": "go"},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "calling"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"z": 1, "a": 2}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "42"}]},
        {"type": "text", "text": "and?"}]}],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "thinking": {"type": "enabled", "budget_tokens": 1000}})");
  JsonFields fields(body);
  const Json context = AnthropicContext(fields, model);
  ASSERT_TRUE(fields.ok()) << fields.status();
  EXPECT_EQ(context["messages"], Parse(R"([
    {"role": "system", "content": "a\nb"},
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": "calling", "reasoning_content": "hm", "tool_calls": [
      {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": 2}}}]},
    {"role": "tool", "tool_call_id": "t1", "content": "42"},
    {"role": "user", "content": "and?"}])"));
  EXPECT_EQ(context["tools"], Parse(R"([{"type": "function", "function": {
    "name": "f", "description": "d", "parameters": {"type": "object"}}}])"));
  EXPECT_EQ(context["enable_thinking"], true);
}

}  // namespace
}  // namespace switchyard::coordinator::http
