// The HTTP APIs on the demo model: faults that users of other servers met, over real sockets.
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/engine_setup.h"
#include "app/loaded_model.h"
#include "base/check.h"
#include "coordinator/http/http_surface.h"
#include "coordinator/http/json_text.h"
#include "testing/http_client.h"

namespace switchyard::app {
namespace {

using coordinator::http::Json;
using coordinator::http::JsonText;
using coordinator::http::ParseJson;
using switchyard::testing::ClientResponse;
using switchyard::testing::HttpClient;
using switchyard::testing::SseData;

constexpr int64_t kContext = 4096;

Json Parse(std::string_view text) {
  auto json = ParseJson(text);
  return json.ok() ? *std::move(json) : Json("not JSON: " + std::string(text));
}

template <typename Condition>
bool Eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// A server as `serve` sets it up, once for all tests.
class HttpCasesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model =
        OpenModel(std::string(SWITCHYARD_SOURCE_DIR) + "/deploy/demo/switchyard-demo.gguf");
    SWITCHYARD_CHECK(model.ok());
    model_ = std::move(*model);
    ModelOptions options;
    options.num_slots = 4;
    options.context = kContext;
    options.num_threads = 2;
    options.prefix_cache_bytes = int64_t{64} << 20;
    auto engine = StartEngine(*model_, options);
    SWITCHYARD_CHECK(engine.ok());
    engine_ = std::move(*engine);
    metrics_ = std::make_unique<coordinator::ServingMetrics>(
        coordinator::ServingMetricsOptions{.model = "demo"});
    metrics_->SetEngineSource([] { return engine_->stats(); });
    gate_ = std::make_unique<coordinator::RequestGate>(*engine_, *metrics_);
    SWITCHYARD_CHECK(
        Eventually([] { return engine_->state() == coordinator::EngineState::kServing; }));
    gate_->SetEngineState(coordinator::EngineState::kServing);
    served_ = std::make_unique<coordinator::ServedModel>(
        coordinator::ServedModel{.name = "demo",
                                 .spec = model_->spec,
                                 .tokenizer = model_->tokenizer,
                                 .chat_template = model_->chat_template,
                                 .max_context = kContext,
                                 .digest = "",
                                 .path_name = "",
                                 .plan_id = ""});
    coordinator::http::HttpSurfaceOptions surface;
    surface.server.port = 0;
    surface_ = std::make_unique<coordinator::http::HttpSurface>(
        *served_, *gate_, *metrics_, [] { return engine_->stats(); }, /*keys=*/nullptr, surface);
    SWITCHYARD_CHECK(surface_->Start().ok());
  }

  static void TearDownTestSuite() {
    surface_.reset();
    gate_.reset();
    engine_.reset();
    metrics_.reset();
    served_.reset();
    model_.reset();
  }

  static ClientResponse Post(std::string_view target, const Json& body) {
    return HttpClient(surface_->port()).Request("POST", target, JsonText(body));
  }
  static ClientResponse Complete(const Json& body) { return Post("/v1/completions", body); }

  // A prompt of `count` token ids without meaning.
  static Json Prompt(int count) {
    Json prompt = Json::array();
    for (int i = 0; i < count; ++i) prompt.push_back(7 + (37 * i) % 900);
    return prompt;
  }

  static Json Greedy(int prompt_tokens, int max_tokens) {
    return {{"prompt", Prompt(prompt_tokens)},
            {"max_tokens", max_tokens},
            {"temperature", 0},
            {"ignore_eos", true}};
  }

  static std::string TextOf(const Json& body) {
    return Parse(Complete(body).body)["choices"][0]["text"].get<std::string>();
  }

  static std::vector<std::string> Deltas(const ClientResponse& response) {
    std::vector<std::string> deltas;
    for (const std::string& event : SseData(response.body)) {
      if (event == "[DONE]") continue;
      std::string text = Parse(event)["choices"][0].value("text", "");
      if (!text.empty()) deltas.push_back(std::move(text));
    }
    return deltas;
  }

  static std::string Join(const std::vector<std::string>& texts) {
    std::string joined;
    for (const std::string& text : texts) joined += text;
    return joined;
  }

  static bool IsIdle() {
    const auto stats = engine_->stats();
    return stats.num_running == 0 && stats.num_waiting == 0 && gate_->running().empty();
  }

  static double Metric(std::string_view name) {
    const std::string text = HttpClient(surface_->port()).Request("GET", "/metrics").body;
    const size_t at = text.find("\n" + std::string(name) + "{");
    if (at == std::string::npos) return 0;
    return std::stod(text.substr(text.find("} ", at) + 2));
  }

  static std::unique_ptr<LoadedModel> model_;
  static std::unique_ptr<coordinator::Engine> engine_;
  static std::unique_ptr<coordinator::ServingMetrics> metrics_;
  static std::unique_ptr<coordinator::RequestGate> gate_;
  static std::unique_ptr<coordinator::ServedModel> served_;
  static std::unique_ptr<coordinator::http::HttpSurface> surface_;
};

std::unique_ptr<LoadedModel> HttpCasesTest::model_;
std::unique_ptr<coordinator::Engine> HttpCasesTest::engine_;
std::unique_ptr<coordinator::ServingMetrics> HttpCasesTest::metrics_;
std::unique_ptr<coordinator::RequestGate> HttpCasesTest::gate_;
std::unique_ptr<coordinator::ServedModel> HttpCasesTest::served_;
std::unique_ptr<coordinator::http::HttpSurface> HttpCasesTest::surface_;

// Keys sorted or characters escaped, the model would see another text than in its training.
TEST_F(HttpCasesTest, ToolsStandInThePromptAsTheyCame) {
  const Json tools = Parse(
      R"([{"type":"function","function":{"name":"w","description":"if t > 1 & t < 9 (user's) é",)"
      R"("parameters":{"type":"object","properties":{"z":{"type":"string"},"a":{"type":)"
      R"("number"}}}}}])");
  const ClientResponse response =
      Post("/apply-template",
           {{"messages", Json::array({{{"role", "user"}, {"content", "x"}}})}, {"tools", tools}});
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_THAT(Parse(response.body)["prompt"].get<std::string>(),
              ::testing::HasSubstr(
                  R"({"type": "function", "function": {"name": "w", "description": )"
                  R"("if t > 1 & t < 9 (user's) é", "parameters": {"type": "object", )"
                  R"("properties": {"z": {"type": "string"}, "a": {"type": "number"}}}}})"));
}

TEST_F(HttpCasesTest, StopStringsOverDeltasAreCutOrGivenBack) {
  Json request = Greedy(20, 40);
  const std::string text = TextOf(request);
  request["stream"] = true;
  const std::vector<std::string> deltas = Deltas(Complete(request));
  ASSERT_EQ(Join(deltas), text);
  // A border in the middle of the answer with two bytes on both sides.
  size_t border = 0;
  for (size_t i = 4; i + 1 < deltas.size() && border == 0; ++i) {
    if (deltas[i].size() >= 2 && deltas[i + 1].size() >= 2) border = i;
  }
  ASSERT_GT(border, 0u);
  const std::string stop =
      deltas[border].substr(deltas[border].size() - 2) + deltas[border + 1].substr(0, 2);
  // Begins at the end of the answer and never completes.
  const std::string never = text.substr(text.size() - 3) + "§";
  for (const bool is_streamed : {false, true}) {
    request["stream"] = is_streamed;
    const auto run = [&](const std::string& given, std::string& finish_reason) {
      request["stop"] = given;
      const ClientResponse response = Complete(request);
      if (!is_streamed) {
        const Json choice = Parse(response.body)["choices"][0];
        finish_reason = choice["finish_reason"];
        return choice["text"].get<std::string>();
      }
      const std::vector<std::string> data = SseData(response.body);
      finish_reason = Parse(data[data.size() - 2])["choices"][0]["finish_reason"];
      return Join(Deltas(response));
    };
    std::string finish_reason;
    EXPECT_EQ(run(stop, finish_reason), text.substr(0, text.find(stop)));
    EXPECT_EQ(finish_reason, "stop");
    EXPECT_EQ(run(never, finish_reason), text);
    EXPECT_EQ(finish_reason, "length");
  }
}

TEST_F(HttpCasesTest, BadLogitBiasesHarmNoOneElse) {
  const Json request = Greedy(20, 200);
  const std::string text = TextOf(request);
  Json streamed = request;
  streamed["stream"] = true;
  HttpClient client(surface_->port());
  ASSERT_TRUE(
      client.SendRaw(HttpClient::RequestText("POST", "/v1/completions", JsonText(streamed))));
  ClientResponse stream = client.ReadHead();
  ASSERT_EQ(stream.status, 200);
  for (const char* bias : {R"({"2048":5})", R"({"-1":5})", R"({"AI":-100})", R"({"10":1e999})",
                           "[1]", R"({"4294967306":5})", R"({"10":null})"}) {
    const ClientResponse response =
        HttpClient(surface_->port())
            .Request("POST", "/v1/completions",
                     R"({"prompt":"a","logit_bias":)" + std::string(bias) + "}");
    EXPECT_EQ(response.status, 400) << bias;
  }
  while (client.ReadChunk(stream)) {
  }
  EXPECT_EQ(Join(Deltas(stream)), text);
  EXPECT_EQ(TextOf(request), text);
}

TEST_F(HttpCasesTest, PromptAndAnswerTogetherFillTheContext) {
  for (const bool is_streamed : {false, true}) {
    const auto run = [&](int prompt_tokens, int max_tokens) {
      Json request = Greedy(prompt_tokens, max_tokens);
      request["stream"] = is_streamed;
      request["stream_options"] = {{"include_usage", true}};
      return Complete(request);
    };
    const auto last = [&](const ClientResponse& response) {
      if (!is_streamed) return Parse(response.body);
      const std::vector<std::string> data = SseData(response.body);
      Json json = Parse(data[data.size() - 3]);
      json["usage"] = Parse(data[data.size() - 2])["usage"];
      return json;
    };
    for (const auto& [prompt_tokens, max_tokens] : {std::pair(4095, 1), std::pair(4090, 6)}) {
      const ClientResponse response = run(prompt_tokens, max_tokens);
      ASSERT_EQ(response.status, 200) << response.body;
      const Json json = last(response);
      EXPECT_EQ(json["usage"]["completion_tokens"], max_tokens);
      EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
    }
    for (const auto& [prompt_tokens, max_tokens] :
         {std::pair(4096, 1), std::pair(4097, 1), std::pair(4090, 7)}) {
      const ClientResponse response = run(prompt_tokens, max_tokens);
      EXPECT_EQ(response.status, 400);
      EXPECT_EQ(Parse(response.body)["error"]["code"], "context_length_exceeded");
    }
  }
}

TEST_F(HttpCasesTest, SpeedOnAHitCountsWhatWasComputed) {
  std::string system;
  while (model_->tokenizer.Encode(system, model::SpecialMatching::kNone).size() < 2000) {
    for (int i = 0; i < 50; ++i)
      system += "the quick brown fox has seen " + std::to_string(i) + ", ";
  }
  const Json request = {{"messages", Json::array({{{"role", "system"}, {"content", system}},
                                                  {{"role", "user"}, {"content", "go on"}}})},
                        {"max_tokens", 8},
                        {"temperature", 0}};
  const Json cold = Parse(Post("/v1/chat/completions", request).body);
  const double hits = Metric("switchyard_prefix_cache_hits_total");
  const Json hit = Parse(Post("/v1/chat/completions", request).body);
  EXPECT_EQ(cold["timings"]["cache_n"], 0);
  EXPECT_EQ(hit["choices"][0]["message"], cold["choices"][0]["message"]);
  for (const Json& answer : {cold, hit}) {
    const Json& timings = answer["timings"];
    const double prompt_n = timings["prompt_n"];
    EXPECT_EQ(timings["prompt_n"].get<int>() + timings["cache_n"].get<int>(),
              answer["usage"]["prompt_tokens"].get<int>());
    EXPECT_EQ(timings["cache_n"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]);
    // The same double division, so equal to the last bits of the printed numbers.
    const double expected = 1000 * prompt_n / timings["prompt_ms"].get<double>();
    EXPECT_DOUBLE_EQ(timings["prompt_per_second"].get<double>(), expected);
  }
  EXPECT_GT(hit["timings"]["cache_n"].get<int>(), 1500);
  EXPECT_EQ(hit["timings"]["cache_n"].get<int>() % 64, 0);
  EXPECT_EQ(Metric("switchyard_prefix_cache_hits_total") - hits,
            hit["timings"]["cache_n"].get<double>());
}

TEST_F(HttpCasesTest, LeavingBesideAPrefillLeavesTheOtherAlone) {
  Json other = Greedy(2000, 8);
  other["cache_prompt"] = false;
  const std::string expected = TextOf(other);
  for (int round = 0; round < 6; ++round) {
    Json leaving = {{"messages", Json::array({{{"role", "user"}, {"content", "tell me"}}})},
                    {"max_tokens", 500},
                    {"ignore_eos", true},
                    {"stream", round % 2 == 0}};
    HttpClient a(surface_->port());
    ASSERT_TRUE(
        a.SendRaw(HttpClient::RequestText("POST", "/v1/chat/completions", JsonText(leaving))));
    ASSERT_TRUE(Eventually([] { return engine_->stats().num_running == 1; }));
    HttpClient b(surface_->port());
    ASSERT_TRUE(b.SendRaw(HttpClient::RequestText("POST", "/v1/completions", JsonText(other))));
    ASSERT_TRUE(Eventually([] { return gate_->running().size() == 2; }));
    a.Reset();
    const ClientResponse response = b.Read();
    ASSERT_EQ(response.status, 200);
    EXPECT_EQ(Parse(response.body)["choices"][0]["text"], expected);
    EXPECT_TRUE(Eventually(IsIdle));
    for (const Json& slot : Parse(HttpClient(surface_->port()).Request("GET", "/slots").body)) {
      EXPECT_EQ(slot["is_processing"], false);
    }
  }
  EXPECT_TRUE(engine_->CheckInvariants().ok());
}

// A long run of one character must neither overflow a stack nor take more than linear time.
TEST_F(HttpCasesTest, EndlessRunsAreTokenisedAndRefusedByTheContext) {
  for (const std::string unit : {"A", " ", "\n", "\xCC\x81", "7"}) {
    std::string text;
    for (int i = 0; i < (1 << 20); ++i) text += unit;
    const ClientResponse response = Post("/tokenize", {{"content", text}});
    ASSERT_EQ(response.status, 200);
    const Json tokens = Parse(response.body);
    const ClientResponse back = Post("/detokenize", tokens);
    ASSERT_EQ(back.status, 200);
    EXPECT_TRUE(Parse(back.body)["content"] == text) << unit;
    // Between letters, since templates trim.
    const ClientResponse chat =
        Post("/v1/chat/completions",
             {{"messages", Json::array({{{"role", "user"}, {"content", "a" + text + "b"}}})}});
    EXPECT_EQ(chat.status, 400);
    EXPECT_EQ(Parse(chat.body)["error"]["code"], "context_length_exceeded");
  }
  EXPECT_EQ(Complete(Greedy(20, 4)).status, 200);
}

}  // namespace
}  // namespace switchyard::app
