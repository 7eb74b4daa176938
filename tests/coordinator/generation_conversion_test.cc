#include "coordinator/generation_conversion.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/error_info.h"
#include "base/status.h"
#include "testing/byte_tokenizer.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::generation::v1;
using ::testing::ElementsAre;

class GenerationConversionTest : public ::testing::Test {
 protected:
  absl::StatusOr<Prompt> Render() const { return RenderChatPrompt(chat_, "chat", model_); }

  void ExpectRefused(std::string_view field) const {
    const absl::Status status = Render().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(FieldOf(status), field);
  }

  v1::ChatMessage& AddMessage(const char* role, const char* content) {
    v1::ChatMessage& message = *chat_.add_messages();
    message.set_role(role);
    message.set_content(content);
    return message;
  }

  google::protobuf::Value& Argument(const std::string& name) {
    return (*chat_.mutable_template_arguments()->mutable_fields())[name];
  }

  const model::ModelSpec spec_{};
  const model::Tokenizer tokenizer_ = testing::ByteTokenizer();
  const model::ChatTemplate template_ = *model::ChatTemplate::Parse(
      "{{ messages | tojson }}|{{ tools | tojson }}|{{ extra | tojson }}|{{ enable_thinking }}");
  const ServedModel model_{.name = "tiny",
                           .created_unix_seconds = 0,
                           .spec = spec_,
                           .tokenizer = tokenizer_,
                           .chat_template = template_,
                           .max_context = 1024,
                           .file_bytes = 0,
                           .digest = "",
                           .path_name = "",
                           .mode = "single",
                           .plan_id = ""};
  v1::ChatPrompt chat_;
};

TEST_F(GenerationConversionTest, TellsTheDivisionOfTheMoment) {
  ServedModel model = model_;
  EXPECT_EQ(ToProto(model).mode(), "single");
  model.present_plan = [] { return ServedPlan{.mode = "layer_split", .id = "layer_split-2-4"}; };
  EXPECT_EQ(ToProto(model).mode(), "layer_split");
  EXPECT_EQ(ToProto(model).plan_id(), "layer_split-2-4");
}

TEST_F(GenerationConversionTest, ConversationsReachTheTemplateWhole) {
  AddMessage("user", "hi");
  v1::ChatMessage& answer = AddMessage("assistant", "");
  answer.set_reasoning_content("hm");
  v1::ToolCall& call = *answer.add_tool_calls();
  call.set_id("c1");
  call.set_name("add");
  call.set_arguments_json(R"({"b": 2, "a": 1})");
  v1::ChatMessage& result = AddMessage("tool", "3");
  result.set_tool_call_id("c1");
  chat_.add_tools_json(R"({"type": "function", "function": {"name": "add"}})");
  chat_.set_enable_thinking(true);
  Argument("extra").set_number_value(3);
  EXPECT_EQ(
      Render()->text,
      R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", )"
      R"("reasoning_content": "hm", "tool_calls": [{"id": "c1", "type": "function", "function": )"
      R"({"name": "add", "arguments": {"b": 2, "a": 1}}}]}, )"
      R"({"role": "tool", "content": "3", "tool_call_id": "c1"}]|)"
      R"([{"type": "function", "function": {"name": "add"}}]|3|True)");
}

TEST_F(GenerationConversionTest, ArgumentsOfTheTemplateReplaceNoFields) {
  AddMessage("user", "hi");
  chat_.add_tools_json("{}");
  Argument("messages").set_string_value("mine");
  Argument("tools").set_string_value("mine");
  Argument("enable_thinking").set_string_value("mine");
  auto& list = *Argument("extra").mutable_list_value();
  list.add_values()->set_bool_value(true);
  list.add_values()->set_null_value({});
  auto& object = *list.add_values()->mutable_struct_value()->mutable_fields();
  object["b"].set_number_value(0.5);
  object["a"].set_string_value("x");
  EXPECT_EQ(Render()->text, R"([{"role": "user", "content": "hi"}]|[{}]|)"
                            R"([true, null, {"a": "x", "b": 0.5}]|)");
}

TEST_F(GenerationConversionTest, RefusesToolsThatAreNoBoundedObjects) {
  AddMessage("user", "hi");
  const std::string deep = "{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}";
  std::string wide = "{";
  for (int i = 0; i < 2000; ++i) wide += "\"" + std::to_string(i) + "\":0,";
  wide.back() = '}';
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[1]"), std::string("{}\0x", 4), deep, wide}) {
    chat_.clear_tools_json();
    chat_.add_tools_json("{}");
    chat_.add_tools_json(text);
    ExpectRefused("chat.tools_json[1]");
  }
}

TEST_F(GenerationConversionTest, RefusesArgumentsWithTooManyMembers) {
  AddMessage("user", "hi");
  auto& fields = *Argument("extra").mutable_struct_value()->mutable_fields();
  for (int i = 0; i < 2000; ++i) fields[std::to_string(i)].set_bool_value(true);
  ExpectRefused("chat.template_arguments");
}

TEST_F(GenerationConversionTest, RefusesCallsWhoseArgumentsAreNoObject) {
  AddMessage("assistant", "").add_tool_calls()->set_arguments_json("[1]");
  ExpectRefused("chat.messages");
}

TEST_F(GenerationConversionTest, RefusesTooManyMessages) {
  for (int i = 0; i < 4097; ++i) AddMessage("user", "");
  ExpectRefused("chat.messages");
}

// ---- events
// -----------------------------------------------------------------------------------------

TEST_F(GenerationConversionTest, ProgressIsToldOnceAndOnlyToWhoAsked) {
  v1::OutputOptions options;
  GenerationEvent event;
  event.num_prefilled = 64;
  EXPECT_TRUE(EventConverter(model_, "r", options).Convert(event).empty());
  options.set_include_prompt_progress(true);
  EventConverter converter(model_, "r", options);
  EXPECT_EQ(converter.Convert(event).size(), 1u);
  EXPECT_TRUE(converter.Convert(event).empty()) << "nothing new";
  event.num_prefilled = 128;
  EXPECT_EQ(converter.Convert(event)[0].prompt_progress().processed_tokens(), 128u);
}

TEST_F(GenerationConversionTest, TokensWithoutTextMatterOnlyToWhoAsked) {
  GenerationEvent event;
  event.token_ids = {7};
  v1::OutputOptions options;
  EXPECT_TRUE(EventConverter(model_, "r", options).Convert(event).empty());
  options.set_include_token_ids(true);
  EXPECT_THAT(EventConverter(model_, "r", options).Convert(event)[0].delta().token_ids(),
              ElementsAre(7));
}

// Of two ranks, in three steps.
StepCosts CostsOfTwoRanks() {
  StepCosts costs;
  costs.num_steps = 3;
  costs.seconds = 2;
  costs.idle_seconds = 0.25;
  for (int rank = 0; rank < 2; ++rank) {
    RankTotal total{.rank = rank, .seconds = 2, .idle_seconds = 0.5, .num_steps = 3};
    total.stages[worker::v1::STAGE_COLLECTIVE_WAIT].seconds = 0.5;
    costs.ranks.push_back(total);
  }
  costs.links = {{.from = 0,
                  .to = 1,
                  .bytes = 100,
                  .num_messages = 4,
                  .transfer_seconds = 0.125,
                  .flight_seconds = 0.25},
                 {.from = 1, .to = 0, .bytes = 50}};
  return costs;
}

TEST_F(GenerationConversionTest, EveryRankAndLinkIsTold) {
  GenerationEvent event;
  event.finished = true;
  event.costs = CostsOfTwoRanks();
  const auto out = EventConverter(model_, "r", v1::OutputOptions()).Convert(event);
  ASSERT_EQ(out.size(), 1u);
  const auto& timings = out[0].finished().timings();
  EXPECT_EQ(timings.data_path().collective_bytes(), 150u);
  const auto& steps = timings.steps();
  EXPECT_EQ(steps.idle_ns(), 250'000'000u);
  ASSERT_EQ(steps.ranks_size(), 2);
  EXPECT_EQ(steps.ranks(1).rank(), 1u);
  EXPECT_EQ(steps.ranks(1).num_steps(), 3u);
  EXPECT_EQ(steps.ranks(1).duration_ns(), 2'000'000'000u);
  EXPECT_EQ(steps.ranks(1).idle_ns(), 500'000'000u);
  ASSERT_EQ(steps.ranks(1).stages_size(), 2);
  EXPECT_EQ(steps.ranks(1).stages(0).stage(), "collective_wait");
  EXPECT_EQ(steps.ranks(1).stages(1).stage(), "unattributed");
  EXPECT_EQ(steps.ranks(1).stages(1).duration_ns(), 1'500'000'000u);
  ASSERT_EQ(steps.links_size(), 2);
  EXPECT_EQ(steps.links(0).from_rank(), 0u);
  EXPECT_EQ(steps.links(0).to_rank(), 1u);
  EXPECT_EQ(steps.links(0).bytes(), 100u);
  EXPECT_EQ(steps.links(0).num_messages(), 4u);
  EXPECT_EQ(steps.links(0).transfer_ns(), 125'000'000u);
  EXPECT_EQ(steps.links(0).flight_ns(), 250'000'000u);
}

TEST_F(GenerationConversionTest, FailedEventsHaveNoEnd) {
  GenerationEvent event;
  event.text = "half";
  event.finished = true;
  event.reason = FinishReason::kFailed;
  const auto out = EventConverter(model_, "r", {}).Convert(event);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].delta().text(), "half");
}

TEST(ForClientsTest, FieldsAreNamedByTheirPlaceInTheRequest) {
  for (const auto& [field, path] :
       {std::pair("max_tokens", "spec.stop.max_tokens"),
        std::pair("sampling.top_p", "spec.sampling.top_p"), std::pair("prompt", "spec.prompt"),
        std::pair("spec.chat.messages", "spec.chat.messages")}) {
    EXPECT_EQ(FieldOf(ForClients(WithField(InvalidArgument("bad"), field))), path);
  }
}

TEST(ForClientsTest, ReasonsStayAndBugsAreHidden) {
  EXPECT_EQ(ReasonOf(ForClients(WithReason(Unavailable("x"), kDraining))), kDraining);
  for (const absl::Status& status : {Internal("/srv/x"), DataLoss("/srv/x")}) {
    EXPECT_EQ(ForClients(status), Internal("the server failed; its log says how"));
  }
  EXPECT_TRUE(ForClients(absl::OkStatus()).ok());
}

}  // namespace
}  // namespace switchyard::coordinator
