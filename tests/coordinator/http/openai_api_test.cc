// OpenAI's API over real sockets.
#include <cmath>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "surface_harness.h"

namespace switchyard::coordinator::http {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Json Completion(Json more = Json::object()) {
  Json body = {{"model", "fake-model"},
               {"prompt", "once upon a time"},
               {"max_tokens", 20},
               {"temperature", 0}};
  body.update(more);
  return body;
}

Json Chat(Json more = Json::object()) {
  Json body = {{"model", "fake-model"},
               {"messages", Json::array({{{"role", "user"}, {"content", "hello"}}})},
               {"max_tokens", 20},
               {"temperature", 0}};
  body.update(more);
  return body;
}

constexpr std::string_view kChatPrompt =
    "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";

TEST(OpenAiApiTest, CompletesAPrompt) {
  SurfaceHarness harness;
  harness.Start();
  const ClientResponse response = harness.Post("/v1/completions", Completion());
  ASSERT_EQ(response.status, 200) << response.body;
  const Json json = Parse(response.body);
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["model"], "fake-model");
  EXPECT_THAT(json["id"].get<std::string>(), StartsWith("cmpl-req-"));
  EXPECT_GT(json["created"].get<int64_t>(), 1700000000);
  ASSERT_EQ(json["choices"].size(), 1u);
  EXPECT_EQ(json["choices"][0]["text"], harness.Expected("once upon a time", 20));
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["choices"][0]["logprobs"], nullptr);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 16);
  EXPECT_EQ(json["usage"]["completion_tokens"], 20);
  EXPECT_EQ(json["usage"]["total_tokens"], 36);
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  const Json& timings = json["timings"];
  for (const char* name :
       {"cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
        "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second", "queue_ms",
        "ttft_ms", "mode", "plan_id", "data_path"}) {
    EXPECT_TRUE(timings.contains(name)) << name;
  }
  EXPECT_EQ(timings["prompt_n"], 16);
  EXPECT_EQ(timings["predicted_n"], 20);
  EXPECT_EQ(timings["plan_id"], "plan-1");
  EXPECT_GE(timings["ttft_ms"].get<double>(), timings["queue_ms"].get<double>());
}

TEST(OpenAiApiTest, TakesPromptsInEachForm) {
  SurfaceHarness harness;
  harness.Start();
  const std::string expected = harness.Expected("AB", 16);
  for (const char* prompt : {R"("AB")", R"(["AB"])", "[32,33]", "[[32,33]]", "[32.0,33]"}) {
    const ClientResponse response = harness.Post(
        "/v1/completions", R"({"temperature":0,"prompt":)" + std::string(prompt) + "}");
    ASSERT_EQ(response.status, 200) << prompt << response.body;
    const Json json = Parse(response.body);
    EXPECT_EQ(json["choices"][0]["text"], expected) << prompt;
    EXPECT_EQ(json["usage"]["completion_tokens"], 16);  // the default of completions
  }
}

TEST(OpenAiApiTest, StreamsACompletionAsOneEventPerTokenAtMost) {
  SurfaceHarness harness;
  harness.Start();
  HttpClient client(harness.port());
  const ClientResponse response = client.Request(
      "POST", "/v1/completions",
      JsonText(Completion({{"stream", true}, {"stream_options", {{"include_usage", true}}}})));
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_THAT(response.Header("content-type"), StartsWith("text/event-stream"));
  EXPECT_EQ(response.Header("cache-control"), "no-cache");
  EXPECT_EQ(response.Header("x-accel-buffering"), "no");
  EXPECT_TRUE(response.is_complete);
  std::vector<std::string> data = SseData(response.body);
  ASSERT_GE(data.size(), 4u);
  EXPECT_EQ(data.back(), "[DONE]");
  data.pop_back();
  const Json usage = Parse(data.back());
  data.pop_back();
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 20);
  EXPECT_TRUE(usage.contains("timings"));
  const Json last = Parse(data.back());
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(last["choices"][0]["text"], "");
  EXPECT_EQ(last["timings"]["predicted_n"], 20);
  std::string text;
  for (const std::string& event : data) {
    const Json chunk = Parse(event);
    EXPECT_EQ(chunk["usage"], nullptr);
    text += chunk["choices"][0]["text"].get<std::string>();
  }
  EXPECT_EQ(text, harness.Expected("once upon a time", 20));
  // The connection goes on.
  EXPECT_EQ(client.Request("GET", "/livez").status, 200);
}

TEST(OpenAiApiTest, ShowsTheTokensOfACompletionWhenAsked) {
  SurfaceHarness harness;
  harness.Start();
  const std::string expected = harness.Expected("once upon a time", 20);
  std::vector<int32_t> expected_ids;
  for (const char c : expected) expected_ids.push_back(c - '!');  // byte tokens begin at '!'
  const Json whole =
      Parse(harness.Post("/v1/completions", Completion({{"return_token_ids", true}})).body);
  EXPECT_EQ(whole["choices"][0]["token_ids"], Json(expected_ids));
  EXPECT_FALSE(Parse(harness.Post("/v1/completions", Completion()).body)["choices"][0].contains(
      "token_ids"));

  const ClientResponse streamed =
      harness.Post("/v1/completions", Completion({{"return_token_ids", true}, {"stream", true}}));
  std::vector<std::string> data = SseData(streamed.body);
  ASSERT_GE(data.size(), 3u);
  data.pop_back();  // [DONE]
  std::vector<int32_t> ids;
  for (const std::string& event : data) {
    const Json choice = Parse(event)["choices"][0];
    ASSERT_TRUE(choice.contains("token_ids")) << event;
    for (const Json& id : choice["token_ids"]) ids.push_back(id.get<int32_t>());
  }
  EXPECT_EQ(ids, expected_ids);
}

TEST(OpenAiApiTest, StreamsTokensWhoseTextIsHeldBack) {
  SurfaceHarness harness;
  harness.Start();
  const std::string text = harness.Expected("once upon a time", 3);
  // All but the last character of the stop string is held back, and never comes as text.
  const ClientResponse streamed =
      harness.Post("/v1/completions",
                   Completion({{"return_token_ids", true}, {"stream", true}, {"stop", text}}));
  size_t num_ids = 0;
  for (const std::string& event : SseData(streamed.body)) {
    if (event == "[DONE]") continue;
    const Json choice = Parse(event)["choices"][0];
    EXPECT_EQ(choice["text"], "");
    num_ids += choice["token_ids"].size();
  }
  EXPECT_EQ(num_ids, 3u);
}

TEST(OpenAiApiTest, ChatsWholeAndStreamed) {
  SurfaceHarness harness;
  harness.Start();
  const std::string expected = harness.Expected(kChatPrompt, 20);
  const Json whole = Parse(harness.Post("/v1/chat/completions", Chat()).body);
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_THAT(whole["id"].get<std::string>(), StartsWith("chatcmpl-"));
  EXPECT_EQ(whole["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(whole["choices"][0]["message"]["content"], expected);
  EXPECT_FALSE(whole["choices"][0]["message"].contains("reasoning_content"));
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");

  const ClientResponse streamed = harness.Post("/v1/chat/completions", Chat({{"stream", true}}));
  const std::vector<std::string> data = SseData(streamed.body);
  ASSERT_GE(data.size(), 3u);
  const Json first = Parse(data[0]);
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"]["role"], "assistant");
  EXPECT_FALSE(first.contains("usage"));
  EXPECT_EQ(data.back(), "[DONE]");
  const Json last = Parse(data[data.size() - 2]);
  EXPECT_EQ(last["choices"][0]["delta"], Json::object());
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  std::string text;
  std::set<std::string> ids;
  for (size_t i = 0; i + 1 < data.size(); ++i) {
    const Json chunk = Parse(data[i]);
    ids.insert(chunk["id"].get<std::string>());
    text += chunk["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, expected);
  EXPECT_EQ(ids.size(), 1u);
}

TEST(OpenAiApiTest, LogprobsComeInBothForms) {
  SurfaceHarness harness;
  harness.Start();
  for (const bool is_streamed : {false, true}) {
    const ClientResponse response =
        harness.Post("/v1/chat/completions",
                     Chat({{"logprobs", true}, {"top_logprobs", 2}, {"stream", is_streamed}}));
    ASSERT_EQ(response.status, 200) << response.body;
    Json content = Json::array();
    if (is_streamed) {
      for (const std::string& event : SseData(response.body)) {
        if (event == "[DONE]") continue;
        const Json logprobs = Parse(event)["choices"][0]["logprobs"];
        if (logprobs.is_null()) continue;
        for (const Json& token : logprobs["content"]) content.push_back(token);
      }
    } else {
      content = Parse(response.body)["choices"][0]["logprobs"]["content"];
    }
    ASSERT_EQ(content.size(), 20u);
    std::string text;
    for (const Json& token : content) {
      text += token["token"].get<std::string>();
      EXPECT_EQ(token["bytes"].size(), 1u);
      EXPECT_FLOAT_EQ(token["logprob"].get<float>(), std::log(0.5f));
      ASSERT_EQ(token["top_logprobs"].size(), 2u);
      EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);
    }
    EXPECT_EQ(text, harness.Expected(kChatPrompt, 20));
  }
  const Json completion =
      Parse(harness.Post("/v1/completions", Completion({{"logprobs", 1}})).body);
  const Json& logprobs = completion["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"].size(), 20u);
  EXPECT_EQ(logprobs["token_logprobs"].size(), 20u);
  EXPECT_EQ(logprobs["text_offset"][3], 3);
  ASSERT_EQ(logprobs["top_logprobs"].size(), 20u);
  EXPECT_EQ(logprobs["top_logprobs"][3].size(), 1u);
}

TEST(OpenAiApiTest, StopStringEndsWithItsReason) {
  SurfaceHarness harness;
  harness.Start();
  const std::string text = harness.Expected("once upon a time", 20);
  const std::string stop = text.substr(8, 3);
  for (const Json& given : {Json(stop), Json::array({"never there", stop})}) {
    const Json json = Parse(harness.Post("/v1/completions", Completion({{"stop", given}})).body);
    EXPECT_EQ(json["choices"][0]["text"], text.substr(0, text.find(stop)));
    EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  }
}

TEST(OpenAiApiTest, ListsItsModelAlsoWhileLoading) {
  HarnessOptions options;
  options.worker.ready_at_start = false;
  SurfaceHarness harness(options);
  harness.Start();
  const Json list = Parse(harness.Get("/v1/models").body);
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "fake-model");
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_EQ(list["data"][0]["created"], 1700000000);
  EXPECT_EQ(list["data"][0]["meta"]["context_tokens"], 1024);
  EXPECT_EQ(list["data"][0]["meta"]["n_ctx"], 1024);
  EXPECT_EQ(list["data"][0]["meta"]["n_vocab"], testing::ByteTokenizer().vocab_size());
  EXPECT_EQ(Parse(harness.Get("/v1/models/fake-model").body)["id"], "fake-model");
  EXPECT_EQ(Parse(harness.Get("/v1/models/fake%2Dmodel").body)["id"], "fake-model");
  const ClientResponse unknown = harness.Get("/v1/models/other");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(Parse(unknown.body)["error"]["code"], "model_not_found");

  const ClientResponse loading = harness.Post("/v1/completions", Completion());
  EXPECT_EQ(loading.status, 503);
  EXPECT_NE(loading.Header("retry-after"), "");
  EXPECT_EQ(Parse(loading.body)["error"]["type"], "unavailable_error");
}

struct Refusal {
  const char* name;
  const char* path;
  const char* fields;  // added to a good request
  int status;
  const char* param;
};

class OpenAiRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(OpenAiRefusalTest, NamesTheField) {
  const auto& [name, path, text, status, param] = GetParam();
  static SurfaceHarness* const harness = new SurfaceHarness;
  static const bool is_started = (harness->Start(), true);
  ASSERT_TRUE(is_started);
  Json body = std::string_view(path) == "/v1/completions" ? Completion() : Chat();
  body.update(Parse(text));
  for (const bool is_streamed : {false, true}) {
    body["stream"] = is_streamed;
    const ClientResponse response = harness->Post(path, body);
    EXPECT_EQ(response.status, status) << response.body;
    const Json error = Parse(response.body)["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["param"], param) << response.body;
    EXPECT_EQ(error["code"] == "unsupported", status == 501) << response.body;
    EXPECT_FALSE(error["message"].get<std::string>().empty());
  }
}

constexpr const char* kC = "/v1/completions";
constexpr const char* kM = "/v1/chat/completions";

INSTANTIATE_TEST_SUITE_P(
    All, OpenAiRefusalTest,
    ::testing::Values(
        Refusal{"Model", kC, R"({"model":"other"})", 404, "model"},
        Refusal{"ModelType", kC, R"({"model":1})", 400, "model"},
        Refusal{"TemperatureNegative", kC, R"({"temperature":-0.1})", 400, "temperature"},
        Refusal{"TemperatureText", kC, R"({"temperature":"1"})", 400, "temperature"},
        Refusal{"TemperatureHuge", kC, R"({"temperature":1e39})", 400, "temperature"},
        Refusal{"TopP", kC, R"({"top_p":1.5})", 400, "top_p"},
        Refusal{"TopPZero", kC, R"({"top_p":0})", 400, "top_p"},
        Refusal{"MinP", kC, R"({"min_p":-1})", 400, "min_p"},
        Refusal{"TopK", kC, R"({"top_k":-1})", 400, "top_k"},
        Refusal{"TopKFraction", kC, R"({"top_k":1.5})", 400, "top_k"},
        Refusal{"SeedNegative", kC, R"({"seed":-1})", 400, "seed"},
        Refusal{"MaxTokensZero", kC, R"({"max_tokens":0})", 400, "max_tokens"},
        Refusal{"MaxTokensHuge", kC, R"({"max_tokens":4294967297})", 400, "max_tokens"},
        Refusal{"MaxTokensText", kC, R"({"max_tokens":"5"})", 400, "max_tokens"},
        Refusal{"MaxTokensTrue", kC, R"({"max_tokens":true})", 400, "max_tokens"},
        Refusal{"MaxCompletionTokens", kM, R"({"max_completion_tokens":-5})", 400,
                "max_completion_tokens"},
        Refusal{"Stream", kC, R"({"stream_options":[]})", 400, "stream_options"},
        Refusal{"StopNumber", kC, R"({"stop":1})", 400, "stop"},
        Refusal{"StopEmpty", kC, R"({"stop":""})", 400, "stop"},
        Refusal{"StopInside", kC, R"({"stop":[1]})", 400, "stop"},
        Refusal{"StopMany", kC,
                R"({"stop":["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"]})",
                400, "stop"},
        Refusal{"Penalty", kC, R"({"presence_penalty":3})", 400, "presence_penalty"},
        Refusal{"BiasOutside", kC, R"({"logit_bias":{"258":5}})", 400, "logit_bias.258"},
        Refusal{"BiasNegative", kC, R"({"logit_bias":{"-1":5}})", 400, "logit_bias.-1"},
        Refusal{"BiasName", kC, R"({"logit_bias":{"AI":-100}})", 400, "logit_bias.AI"},
        Refusal{"BiasSpace", kC, R"({"logit_bias":{" 1":5}})", 400, "logit_bias. 1"},
        Refusal{"BiasPlus", kC, R"({"logit_bias":{"+1":5}})", 400, "logit_bias.+1"},
        Refusal{"BiasEmpty", kC, R"({"logit_bias":{"":5}})", 400, "logit_bias."},
        Refusal{"BiasLarge", kC, R"({"logit_bias":{"1":101}})", 400, "logit_bias.1"},
        Refusal{"BiasText", kC, R"({"logit_bias":{"1":"2"}})", 400, "logit_bias.1"},
        Refusal{"BiasList", kC, R"({"logit_bias":[1]})", 400, "logit_bias"},
        Refusal{"PromptMissing", kC, R"({"prompt":null})", 400, "prompt"},
        Refusal{"PromptNumber", kC, R"({"prompt":5})", 400, "prompt"},
        Refusal{"PromptIds", kC, R"({"prompt":[1,258]})", 400, "prompt"},
        Refusal{"PromptNegative", kC, R"({"prompt":[-1]})", 400, "prompt"},
        Refusal{"PromptMixed", kC, R"({"prompt":[1,"a"]})", 400, "prompt"},
        Refusal{"PromptEmpty", kC, R"({"prompt":""})", 400, "prompt"},
        Refusal{"PromptSeveral", kC, R"({"prompt":["a","b"]})", 501, "prompt"},
        Refusal{"Logprobs", kC, R"({"logprobs":21})", 400, "logprobs"},
        Refusal{"ChatLogprobs", kM, R"({"logprobs":5})", 400, "logprobs"},
        Refusal{"TopLogprobsAlone", kM, R"({"top_logprobs":5})", 400, "top_logprobs"},
        Refusal{"TopLogprobsMany", kM, R"({"logprobs":true,"top_logprobs":21})", 400,
                "top_logprobs"},
        Refusal{"N", kC, R"({"n":2})", 501, "n"}, Refusal{"NZero", kC, R"({"n":0})", 400, "n"},
        Refusal{"BestOf", kC, R"({"best_of":2})", 501, "best_of"},
        Refusal{"Echo", kC, R"({"echo":true})", 501, "echo"},
        Refusal{"Suffix", kC, R"({"suffix":"x"})", 501, "suffix"},
        Refusal{"Schema", kM, R"({"response_format":{"type":"json_schema"}})", 501,
                "response_format"},
        Refusal{"JsonObject", kM, R"({"response_format":{"type":"json_object"}})", 501,
                "response_format"},
        Refusal{"Grammar", kC, R"({"grammar":"root ::= a"})", 501, "grammar"},
        Refusal{"Functions", kM, R"({"functions":[{"name":"f"}]})", 501, "functions"},
        Refusal{"Messages", kM, R"({"messages":"hello"})", 400, "messages"},
        Refusal{"MessagesMissing", kM, R"({"messages":null})", 400, "messages"},
        Refusal{"MessagesEmpty", kM, R"({"messages":[]})", 400, "messages"},
        Refusal{"Role", kM, R"({"messages":[{"content":"a"}]})", 400, "messages"},
        Refusal{"Arguments", kM,
                R"({"messages":[{"role":"assistant","tool_calls":[{"type":"function","function":
                {"name":"f","arguments":"not JSON"}}]}]})",
                400, "messages"},
        Refusal{"Image", kM,
                R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
                501, "messages[0].content"},
        Refusal{"ToolType", kM, R"({"tools":[{"type":"web"}]})", 501, "tools[0].type"},
        Refusal{"ToolName", kM, R"({"tools":[{"type":"function","function":{}}]})", 400,
                "tools[0].function.name"},
        Refusal{"ToolList", kM, R"({"tools":{}})", 400, "tools"},
        Refusal{"ToolForced", kM, R"({"tool_choice":"required"})", 501, "tool_choice"},
        Refusal{"ToolNamed", kM, R"({"tool_choice":{"type":"function"}})", 501, "tool_choice"},
        Refusal{"ToolChoice", kM, R"({"tool_choice":"maybe"})", 400, "tool_choice"},
        Refusal{"Effort", kM, R"({"reasoning_effort":"much"})", 400, "reasoning_effort"},
        Refusal{"Labels", kC, R"({"labels":{"a":1}})", 400, "labels"},
        Refusal{"LabelsMany", kC,
                R"({"labels":{"a":"","b":"","c":"","d":"","e":"","f":"","g":"","h":"","i":""}})",
                400, "labels"}),
    [](const ::testing::TestParamInfo<Refusal>& info) { return std::string(info.param.name); });

TEST(OpenAiApiTest, RefusesWhatIsNoJsonObject) {
  SurfaceHarness harness;
  harness.Start();
  const std::string deep = std::string(65, '[') + std::string(65, ']');
  std::string members = R"({"metadata":{)";
  for (int i = 0; i < 3000; ++i) {
    members += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":0";
  }
  for (const std::string& body :
       {std::string("{"), std::string("[]"), std::string("5"), std::string("nonsense"),
        std::string("{\"prompt\":\"\xff\"}"), std::string(R"({"logit_bias":{"10":1e999}})"),
        std::string(R"({"max_tokens":NaN})"), std::string("{} {}"), R"({"x":)" + deep + "}",
        members + "}}"}) {
    for (const char* path : {kC, kM, "/tokenize", "/apply-template"}) {
      const ClientResponse response = harness.Post(path, body);
      EXPECT_EQ(response.status, 400) << path << body.substr(0, 100);
      EXPECT_EQ(Parse(response.body)["error"]["type"], "invalid_request_error");
    }
  }
  // A POST without a body.
  EXPECT_EQ(harness.Post(kC, "").status, 400);
}

TEST(OpenAiApiTest, IgnoresFieldsThatItDoesNotKnow) {
  SurfaceHarness harness;
  harness.Start();
  const Json extra = {{"user", "u"},
                      {"store", false},
                      {"metadata", {{"a", "b"}}},
                      {"stop", nullptr},
                      {"n", 1},
                      {"best_of", 1},
                      {"seed", nullptr},
                      {"logprobs", nullptr},
                      {"suffix", nullptr},
                      {"grammar", ""},
                      {"functions", Json::array()},
                      {"tools", nullptr},
                      {"something_new", Json::array({1, 2})},
                      {"response_format", {{"type", "text"}}}};
  EXPECT_EQ(harness.Post(kC, Completion(extra)).status, 200);
  EXPECT_EQ(harness.Post(kM, Chat(extra)).status, 200);
}

TEST(OpenAiApiTest, ContextIsOneRuleStreamedOrNot) {
  SurfaceHarness harness;
  harness.Start();
  const auto request = [](int num_prompt, int max_tokens, bool is_streamed) {
    Json prompt = Json::array();
    for (int i = 0; i < num_prompt; ++i) prompt.push_back((i * 37) % 90);
    return Json{{"prompt", prompt}, {"max_tokens", max_tokens}, {"stream", is_streamed}};
  };
  for (const bool is_streamed : {false, true}) {
    for (const auto& [num_prompt, max_tokens] :
         {std::pair(1024, 1), std::pair(1025, 1), std::pair(1018, 7)}) {
      const ClientResponse response =
          harness.Post(kC, request(num_prompt, max_tokens, is_streamed));
      EXPECT_EQ(response.status, 400);
      EXPECT_EQ(Parse(response.body)["error"]["code"], "context_length_exceeded");
    }
    EXPECT_EQ(harness.Post(kC, request(1023, 1, is_streamed)).status, 200);
    EXPECT_EQ(harness.Post(kC, request(1018, 6, is_streamed)).status, 200);
  }
}

constexpr const char* kToolTemplate = R"({%- for message in messages -%}
<{{ message.role }}>{{ message.content }}
{%- endfor -%}
{%- if tools %}{{ tools | tojson }}{% endif -%}
{%- if enable_thinking is defined and not enable_thinking %}quiet{% endif -%})";

TEST(OpenAiApiTest, ToolsAndThinkingReachTheTemplate) {
  HarnessOptions options;
  options.chat_template = kToolTemplate;
  SurfaceHarness harness(options);
  harness.Start();
  const auto prompt = [&](Json more) {
    return Parse(harness.Post("/apply-template", Chat(more)).body)["prompt"].get<std::string>();
  };
  const Json tools = Parse(R"([{"type":"function","function":{"name":"w","description":
      "if t > 1 & t < 9 (user's) é","parameters":{"type":"object","properties":{"z":{"type":
      "string"},"a":{"type":"number"}}}}}])");
  EXPECT_EQ(prompt({{"tools", tools}}),
            "<user>hello"
            R"([{"type": "function", "function": {"name": "w", "description": )"
            R"("if t > 1 & t < 9 (user's) é", "parameters": {"type": "object", "properties": )"
            R"({"z": {"type": "string"}, "a": {"type": "number"}}}}}])");
  EXPECT_EQ(prompt({{"tools", tools}, {"tool_choice", "none"}}), "<user>hello");
  EXPECT_EQ(prompt({{"chat_template_kwargs", {{"enable_thinking", false}}}}), "<user>helloquiet");
  EXPECT_EQ(prompt({{"reasoning_effort", "none"}}), "<user>helloquiet");
  EXPECT_EQ(prompt({{"reasoning_effort", "high"}}), "<user>hello");
  EXPECT_EQ(
      prompt({{"reasoning_effort", "none"}, {"chat_template_kwargs", {{"enable_thinking", true}}}}),
      "<user>hello");
}

TEST(OpenAiApiTest, ToolsNeedATemplateThatReadsThem) {
  HarnessOptions options;
  options.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}";
  SurfaceHarness harness(options);
  harness.Start();
  const ClientResponse response = harness.Post(
      kM, Chat({{"tools", Json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}})}}));
  EXPECT_EQ(response.status, 501);
  EXPECT_EQ(Parse(response.body)["error"]["param"], "tools");
}

// The 64 streams of which each must read as if it were alone.
TEST(OpenAiApiTest, ManyStreamsAtOnceAreEachTheirOwn) {
  SurfaceHarness harness;
  harness.Start();
  constexpr int kNumStreams = 64;
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < kNumStreams; ++i) {
    clients.push_back(std::make_unique<HttpClient>(harness.port()));
    const Json body = {{"prompt", "stream " + std::to_string(i)},
                       {"max_tokens", 128},
                       {"stream", true},
                       {"ignore_eos", true},
                       {"temperature", 0}};
    ASSERT_TRUE(clients.back()->SendRaw(HttpClient::RequestText("POST", kC, JsonText(body))));
  }
  for (int i = 0; i < kNumStreams; ++i) {
    const ClientResponse response = clients[i]->Read();
    EXPECT_TRUE(response.is_complete);
    std::string text;
    for (const std::string& event : SseData(response.body)) {
      if (event != "[DONE]") text += Parse(event)["choices"][0]["text"].get<std::string>();
    }
    EXPECT_EQ(text, harness.Expected("stream " + std::to_string(i), 128));
  }
  EXPECT_TRUE(Eventually([&] { return harness.IsIdle(); }));
}

TEST(OpenAiApiTest, AFullQueueIs429AndHarmsNobody) {
  HarnessOptions options;
  options.worker.hold_at_step = 0;
  options.worker.capacity.num_slots = 1;
  options.max_waiting = 2;
  SurfaceHarness harness(options);
  harness.Start();
  std::vector<std::unique_ptr<HttpClient>> clients;
  int num_refused = 0;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<HttpClient>(harness.port()));
    ASSERT_TRUE(
        clients.back()->SendRaw(HttpClient::RequestText("POST", kC, JsonText(Completion()))));
    // One after the other, so that it is certain who is refused.
    ASSERT_TRUE(Eventually([&] {
      return harness.gate().running().size() == static_cast<size_t>(std::min(i + 1, 3));
    }));
  }
  for (int i = 3; i < 10; ++i) {
    const ClientResponse response = clients[i]->Read();
    num_refused += response.status == 429;
    EXPECT_NE(response.Header("retry-after"), "");
    EXPECT_EQ(Parse(response.body)["error"]["type"], "rate_limit_error");
  }
  EXPECT_EQ(num_refused, 7);
  harness.worker().Release();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(clients[i]->Read().status, 200);
}

}  // namespace
}  // namespace switchyard::coordinator::http
