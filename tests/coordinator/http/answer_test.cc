// What answers look like that a real model gives and the fake worker does not: reasoning, calls.
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "coordinator/http/answer_facts.h"
#include "coordinator/http/anthropic_answer.h"
#include "coordinator/http/openai_answer.h"
#include "surface_harness.h"

namespace switchyard::coordinator::http {
namespace {

class AnswerTest : public ::testing::Test {
 protected:
  static model::AnswerParserOptions Options() {
    model::AnswerParserOptions options;
    options.tools = Parse(R"([{"type": "function", "function": {"name": "f"}}])");
    options.call_id_prefix = "call_";
    return options;
  }

  // Feeds the writer `text` in pieces of three bytes, as tokens would.
  static std::string Feed(AnswerWriter& writer, std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); i += 3) {
      GenerationEvent event;
      event.text = text.substr(i, 3);
      out += writer.OnEvent(event);
    }
    GenerationEvent last;
    last.finished = true;
    last.reason = FinishReason::kStopToken;
    return out + writer.OnEvent(last);
  }

  static constexpr std::string_view kText =
      "<think>\nhm hm\n</think>\n\nLet me see.\n"
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": [2]}}\n</tool_call>";

  model::Tokenizer tokenizer_ = testing::ByteTokenizer();
  model::ChatTemplate template_ = model::ChatTemplate::BuiltInChatMl();
  model::ModelSpec spec_;
  ServedModel model_{.name = "m",
                     .spec = spec_,
                     .tokenizer = tokenizer_,
                     .chat_template = template_,
                     .digest = "",
                     .path_name = "",
                     .plan_id = ""};
};

TEST_F(AnswerTest, ChatHasReasoningContentAndCalls) {
  const auto writer = MakeChatAnswer(model_, {.id = "x"}, Options());
  EXPECT_EQ(Feed(*writer, kText), "");
  const Json choice = writer->Response()["choices"][0];
  const Json& message = choice["message"];
  EXPECT_EQ(message["reasoning_content"], "hm hm");
  EXPECT_EQ(message["content"], "Let me see.");
  ASSERT_EQ(message["tool_calls"].size(), 1u);
  EXPECT_EQ(message["tool_calls"][0]["type"], "function");
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(Parse(message["tool_calls"][0]["function"]["arguments"].get<std::string>()),
            Parse(R"({"z": 1, "a": [2]})"));
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
}

TEST_F(AnswerTest, TimingsShowRanksAndLinksOnlyWhereThereAreSeveral) {
  GenerationEvent last;
  last.costs.num_steps = 1;
  Json timings = TimingsJson(model_, last);
  EXPECT_FALSE(timings.contains("ranks"));
  EXPECT_FALSE(timings.contains("links"));
  EXPECT_FALSE(timings["data_path"].contains("collective_bytes"));
  RankTotal rank{.rank = 1, .seconds = 0.5, .idle_seconds = 0.25, .num_steps = 1};
  rank.stages[worker::v1::STAGE_COLLECTIVE].seconds = 0.125;
  last.costs.ranks = {RankTotal(), rank};
  last.costs.links = {
      {.from = 1, .to = 0, .bytes = 77, .num_messages = 3, .transfer_seconds = 0.0625}};
  timings = TimingsJson(model_, last);
  EXPECT_EQ(timings["ranks"][1]["ms"], 500);
  EXPECT_EQ(timings["ranks"][1]["idle_ms"], 250);
  EXPECT_EQ(timings["ranks"][1]["stages"]["collective"]["ms"], 125);
  EXPECT_EQ(timings["ranks"][1]["stages"]["unattributed"]["ms"], 375);
  EXPECT_EQ(timings["links"][0]["from"], 1);
  EXPECT_EQ(timings["links"][0]["transfer_ms"], 62.5);
  EXPECT_EQ(timings["data_path"]["collective_bytes"], 77);
}

TEST_F(AnswerTest, ChatOfCallsAloneHasNoContent) {
  const auto writer = MakeChatAnswer(model_, {.id = "x"}, Options());
  Feed(*writer, kText.substr(kText.find("<tool_call>")));
  const Json message = writer->Response()["choices"][0]["message"];
  EXPECT_TRUE(message["content"].is_null()) << message;
  EXPECT_EQ(message["tool_calls"].size(), 1u);

  const auto nothing = MakeChatAnswer(model_, {.id = "x"}, Options());
  Feed(*nothing, "");
  EXPECT_EQ(nothing->Response()["choices"][0]["message"]["content"], "");
}

TEST_F(AnswerTest, StreamedChatAddsUpToTheSame) {
  const auto writer = MakeChatAnswer(model_, {.id = "x", .is_streamed = true}, Options());
  std::string reasoning;
  std::string content;
  std::string arguments;
  std::string name;
  std::string id;
  std::string finish_reason;
  const std::vector<std::string> data = SseData(Feed(*writer, kText));
  for (const std::string& event : data) {
    if (event == "[DONE]") continue;
    const Json choice = Parse(event)["choices"][0];
    const Json& delta = choice["delta"];
    reasoning += delta.value("reasoning_content", "");
    content += delta.value("content", "");
    if (!choice["finish_reason"].is_null()) finish_reason = choice["finish_reason"];
    if (!delta.contains("tool_calls")) continue;
    const Json& call = delta["tool_calls"][0];
    EXPECT_EQ(call["index"], 0);
    id += call.value("id", "");
    name += call["function"].value("name", "");
    arguments += call["function"].value("arguments", "");
  }
  EXPECT_EQ(reasoning, "hm hm");
  EXPECT_EQ(content, "Let me see.");
  EXPECT_EQ(name, "f");
  EXPECT_FALSE(id.empty());
  EXPECT_EQ(Parse(arguments), Parse(R"({"z": 1, "a": [2]})"));
  EXPECT_EQ(finish_reason, "tool_calls");
}

TEST_F(AnswerTest, MessageHasOneBlockForEach) {
  const auto writer = MakeMessageAnswer(model_, "msg", /*is_streamed=*/false, Options());
  EXPECT_EQ(Feed(*writer, kText), "");
  const Json message = writer->Response();
  ASSERT_EQ(message["content"].size(), 3u) << message;
  EXPECT_EQ(message["content"][0]["type"], "thinking");
  EXPECT_EQ(message["content"][0]["thinking"], "hm hm");
  EXPECT_EQ(message["content"][1]["text"], "Let me see.");
  EXPECT_EQ(message["content"][2]["type"], "tool_use");
  EXPECT_EQ(message["content"][2]["name"], "f");
  EXPECT_EQ(message["content"][2]["input"], Parse(R"({"z": 1, "a": [2]})"));
  EXPECT_EQ(message["stop_reason"], "tool_use");
}

TEST_F(AnswerTest, StreamedMessageOpensAndClosesEachBlock) {
  const auto writer = MakeMessageAnswer(model_, "msg", /*is_streamed=*/true, Options());
  std::string shape;
  std::string input;
  for (const std::string& event : SseData(Feed(*writer, kText))) {
    const Json data = Parse(event);
    const std::string type = data["type"];
    if (type == "content_block_start") {
      shape += "+" + data["content_block"]["type"].get<std::string>() +
               std::to_string(data["index"].get<int>());
    }
    if (type == "content_block_stop") shape += "-" + std::to_string(data["index"].get<int>());
    if (type == "content_block_delta" && data["delta"]["type"] == "input_json_delta") {
      input += data["delta"]["partial_json"].get<std::string>();
    }
    if (type == "message_delta") shape += " " + data["delta"]["stop_reason"].get<std::string>();
  }
  EXPECT_EQ(shape, "+thinking0-0+text1-1+tool_use2-2 tool_use");
  EXPECT_EQ(Parse(input), Parse(R"({"z": 1, "a": [2]})"));
}

}  // namespace
}  // namespace switchyard::coordinator::http
