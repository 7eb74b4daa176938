// The server's own endpoints over real sockets.
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "coordinator/http/openapi_json.h"
#include "surface_harness.h"

namespace switchyard::coordinator::http {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(NativeApiTest, HealthFollowsTheEngine) {
  HarnessOptions options;
  options.worker.ready_at_start = false;
  SurfaceHarness harness(options);
  harness.Start();
  for (const char* path : {"/health", "/healthz", "/readyz"}) {
    const ClientResponse loading = harness.Get(path);
    EXPECT_EQ(loading.status, 503);
    EXPECT_EQ(Parse(loading.body)["status"], "loading model");
    EXPECT_EQ(Parse(loading.body)["error"]["message"], "loading model");
    EXPECT_NE(loading.Header("retry-after"), "");
  }
  EXPECT_EQ(harness.Get("/livez").status, 200);
  harness.worker().Return();
  ASSERT_TRUE(Eventually([&] { return harness.gate().is_ready(); }));
  for (const char* path : {"/health", "/healthz", "/readyz", "/livez"}) {
    const ClientResponse ready = harness.Get(path);
    EXPECT_EQ(ready.status, 200);
    EXPECT_EQ(Parse(ready.body), (Json{{"status", "ok"}}));
  }
  harness.surface().BeginDrain();
  EXPECT_EQ(Parse(harness.Get("/health").body)["status"], "draining");
  EXPECT_EQ(harness.Get("/livez").status, 200);
}

TEST(NativeApiTest, TokenizesAndBack) {
  SurfaceHarness harness;
  harness.Start();
  EXPECT_EQ(Parse(harness.Post("/tokenize", Json{{"content", "AB"}}).body)["tokens"],
            Json::array({32, 33}));
  EXPECT_EQ(Parse(harness.Post("/tokenize", Json{{"content", "<|im_end|>"}}).body)["tokens"],
            Json::array({257}));
  EXPECT_EQ(
      Parse(harness.Post("/tokenize", Json{{"content", "<|im_end|>"}, {"parse_special", false}})
                .body)["tokens"]
          .size(),
      10u);
  const Json pieces = Parse(
      harness.Post("/tokenize", Json{{"content", "Aé"}, {"with_pieces", true}}).body)["tokens"];
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0]["piece"], "A");
  EXPECT_EQ(pieces[1]["piece"], Json::array({0xC3}));  // half of a character
  EXPECT_EQ(Parse(harness.Post("/detokenize", Json{{"tokens", {32, 33, 257}}}).body)["content"],
            "AB<|im_end|>");
  EXPECT_EQ(harness.Post("/detokenize", Json{{"tokens", {258}}}).status, 400);
  EXPECT_EQ(harness.Post("/detokenize", Json{{"tokens", "a"}}).status, 400);
  EXPECT_EQ(harness.Post("/tokenize", Json{{"content", 5}}).status, 400);
  EXPECT_EQ(harness.Post("/tokenize", Json::object()).status, 400);
  EXPECT_EQ(Parse(harness.Post("/tokenize", Json{{"content", ""}}).body)["tokens"], Json::array());
}

TEST(NativeApiTest, AppliesTheTemplate) {
  SurfaceHarness harness;
  harness.Start();
  const ClientResponse response =
      harness.Post("/apply-template",
                   R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]})");
  EXPECT_EQ(Parse(response.body)["prompt"],
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
}

TEST(NativeApiTest, PropsTellWhatIsServed) {
  SurfaceHarness harness;
  harness.Start();
  const Json props = Parse(harness.Get("/props").body);
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 1024);
  EXPECT_EQ(props["total_slots"], 4);
  EXPECT_EQ(props["model_alias"], "fake-model");
  EXPECT_EQ(props["model_path"], "fake.gguf");
  EXPECT_EQ(props["chat_template_source"], "built-in");
  EXPECT_EQ(props["supports_tools"], true);
  EXPECT_EQ(props["eos_token"], "<|im_end|>");
  EXPECT_EQ(props["bos_token"], nullptr);
}

TEST(NativeApiTest, SlotsShowWhoRuns) {
  HarnessOptions options;
  options.worker.hold_at_step = 1;
  SurfaceHarness harness(options);
  harness.Start();
  HttpClient client(harness.port());
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText(
      "POST", "/v1/completions", R"({"prompt":"abc","max_tokens":30,"labels":{"who":"me"}})",
      "X-Request-Id: mine\r\n")));
  Json slots;
  ASSERT_TRUE(Eventually([&] {
    slots = Parse(harness.Get("/slots").body);
    return slots[0]["completion_tokens"] == 1;
  })) << slots;
  ASSERT_EQ(slots.size(), 4u);
  EXPECT_EQ(slots[0]["is_processing"], true);
  EXPECT_EQ(slots[0]["request_id"], "mine");
  EXPECT_EQ(slots[0]["api"], "openai");
  EXPECT_EQ(slots[0]["labels"]["who"], "me");
  EXPECT_EQ(slots[0]["prompt_tokens"], 3);
  EXPECT_EQ(slots[1]["is_processing"], false);
  EXPECT_EQ(slots[1]["state"], "idle");
  harness.worker().Release();
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_TRUE(
      Eventually([&] { return Parse(harness.Get("/slots").body)[0]["is_processing"] == false; }));
}

TEST(NativeApiTest, SlotsCanBeOff) {
  HarnessOptions options;
  options.surface.has_slots = false;
  SurfaceHarness harness(options);
  harness.Start();
  EXPECT_EQ(harness.Get("/slots").status, 404);
}

TEST(NativeApiTest, MetricsMoveWithRequests) {
  SurfaceHarness harness;
  harness.Start();
  EXPECT_EQ(harness.Post("/v1/completions", R"({"prompt":"abc","max_tokens":5})").status, 200);
  EXPECT_EQ(harness.Post("/v1/completions", "{").status, 400);
  const ClientResponse metrics = harness.Get("/metrics");
  EXPECT_THAT(metrics.Header("content-type"), StartsWith("text/plain; version=0.0.4"));
  EXPECT_THAT(metrics.body, HasSubstr("switchyard_generation_tokens_total"));
  EXPECT_THAT(metrics.body,
              HasSubstr("switchyard_request_errors_total{code=\"INVALID_ARGUMENT\"} 1"));
}

TEST(NativeApiTest, ResidencyShowsEveryExpertOfEveryRank) {
  HarnessOptions options;
  options.surface.residency = [] {
    switchyard::worker::v1::Residency rank;
    rank.set_version(3);
    rank.set_num_layers(2);
    rank.set_num_experts(3);
    for (const auto state : {switchyard::worker::v1::RESIDENCY_STATE_HOST,
                             switchyard::worker::v1::RESIDENCY_STATE_FILE,
                             switchyard::worker::v1::RESIDENCY_STATE_LOADING,
                             switchyard::worker::v1::RESIDENCY_STATE_UNSPECIFIED,
                             switchyard::worker::v1::RESIDENCY_STATE_RESIDENT,
                             switchyard::worker::v1::RESIDENCY_STATE_PINNED}) {
      rank.mutable_states()->push_back(static_cast<char>(state));
    }
    for (const uint64_t uses : {7, 1, 0, 0, 2, 0}) rank.add_uses(uses);
    for (const uint64_t misses : {1, 0}) {
      auto& layer = *rank.add_layers();
      layer.set_hits(misses == 1 ? 7 : 2);
      layer.set_misses(misses);
    }
    // The second rank has told nothing yet.
    return std::vector<switchyard::worker::v1::Residency>{rank, {}};
  };
  SurfaceHarness harness(options);
  harness.Start();
  const ClientResponse response = harness.Get("/api/residency");
  ASSERT_EQ(response.status, 200);
  const Json json = Parse(response.body);
  EXPECT_EQ(json["experts"], 5);
  EXPECT_EQ(json["device"], 2);
  EXPECT_EQ(json["host"], 1);
  EXPECT_EQ(json["file"], 2);
  EXPECT_EQ(json["hits"], 9);
  EXPECT_EQ(json["hit_rate"], 0.9);
  ASSERT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["ranks"][0]["states"], (Json{"hfl", ".rp"}));
  EXPECT_EQ(json["ranks"][0]["uses"][1], (Json{0, 2, 0}));
  EXPECT_EQ(json["ranks"][0]["layers"][0]["misses"], 1);
  EXPECT_TRUE(json["ranks"][1].is_null());
}

TEST(NativeApiTest, ResidencyOfNoWorkerIsEmpty) {
  SurfaceHarness harness;
  harness.Start();
  const Json json = Parse(harness.Get("/api/residency").body);
  EXPECT_EQ(json["experts"], 0);
  EXPECT_TRUE(json["hit_rate"].is_null());
  EXPECT_EQ(json["ranks"], Json::array());
}

// The description must not lag behind: every route is in it, and every path in it answers.
TEST(NativeApiTest, OpenApiDescribesEveryRoute) {
  SurfaceHarness harness;
  harness.Start();
  const ClientResponse response = harness.Get("/openapi.json");
  ASSERT_EQ(response.status, 200);
  const Json description = Parse(response.body);
  EXPECT_THAT(description["openapi"].get<std::string>(), StartsWith("3."));
  std::vector<std::string> described;
  for (const auto& [path, methods] : description["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      described.push_back(method == "get" ? "GET " + path : "POST " + path);
      std::string target = path;
      if (const size_t brace = target.find('{'); brace != std::string::npos) {
        target = target.substr(0, brace) + "fake-model";
      }
      const ClientResponse answer =
          method == "get" ? harness.Get(target) : harness.Post(target, "{}");
      EXPECT_NE(answer.status, 404) << path;
      EXPECT_NE(answer.status, 405) << path;
      EXPECT_TRUE(operation["responses"].contains(std::to_string(answer.status)))
          << path << " gave " << answer.status;
    }
  }
  EXPECT_THAT(described, ::testing::UnorderedElementsAreArray(harness.surface().Routes()));
}

}  // namespace
}  // namespace switchyard::coordinator::http
