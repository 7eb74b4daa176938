// What holds for all routes: keys, ids, unknown paths; and clients that leave or read slowly.
#include "coordinator/http/http_surface.h"

#include <fmt/format.h>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "surface_harness.h"

namespace switchyard::coordinator::http {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string StreamBody(int max_tokens, std::string_view prompt = "abc") {
  return JsonText({{"prompt", prompt},
                   {"max_tokens", max_tokens},
                   {"stream", true},
                   {"temperature", 0},
                   {"ignore_eos", true}});
}

std::string TextOf(const ClientResponse& response) {
  std::string text;
  for (const std::string& event : SseData(response.body)) {
    if (event != "[DONE]") text += Parse(event)["choices"][0].value("text", "");
  }
  return text;
}

TEST(HttpSurfaceTest, UnknownPathsAndMethodsAreJsonErrors) {
  SurfaceHarness harness;
  harness.Start();
  for (const char* path : {"/", "/v1", "/v1/models/", "/health/", "/v2/models", "/../etc/passwd"}) {
    const ClientResponse response = harness.Get(path);
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_EQ(Parse(response.body)["error"]["type"], "invalid_request_error");
  }
  const ClientResponse get = harness.Get("/v1/chat/completions");
  EXPECT_EQ(get.status, 405);
  EXPECT_EQ(get.Header("allow"), "POST");
  EXPECT_EQ(Parse(get.body)["error"]["type"], "invalid_request_error");
  HttpClient client(harness.port());
  EXPECT_EQ(client.Request("DELETE", "/health").Header("allow"), "GET, HEAD");
  EXPECT_EQ(client.Request("HEAD", "/health").status, 200);
  EXPECT_EQ(Parse(harness.Get("/v1/messages").body)["type"], "error");
  // What never reached an API is counted too.
  HttpClient long_body(harness.port());
  ASSERT_TRUE(long_body.SendRaw(
      "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n"));
  EXPECT_EQ(long_body.Read().status, 413);
  const std::string metrics = harness.Get("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("switchyard_request_errors_total{code=\"NOT_FOUND\"} 6\n"));
  EXPECT_THAT(metrics, HasSubstr("switchyard_request_errors_total{code=\"UNIMPLEMENTED\"} 3\n"));
  EXPECT_THAT(metrics,
              HasSubstr("switchyard_request_errors_total{code=\"RESOURCE_EXHAUSTED\"} 1\n"));
}

TEST(HttpSurfaceTest, KeysGuardAllButHealth) {
  HarnessOptions options;
  const std::string path = ::testing::TempDir() + "/http_surface_keys";
  // SHA-256 of "secret".
  std::ofstream(path) << "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n";
  const auto keys = ApiKeys::Load(path);
  ASSERT_TRUE(keys.ok()) << keys.status();
  options.keys = keys->get();
  SurfaceHarness harness(options);
  harness.Start();
  for (const char* path : {"/health", "/healthz", "/livez", "/readyz"}) {
    EXPECT_EQ(harness.Get(path).status, 200) << path;
  }
  for (const char* path : {"/v1/models", "/props", "/slots", "/metrics", "/openapi.json", "/x"}) {
    for (const char* headers : {"", "Authorization: Bearer wrong\r\n", "Authorization: secret\r\n",
                                "Authorization: Basic secret\r\n", "X-Api-Key: \r\n"}) {
      const ClientResponse response = harness.Get(path, headers);
      EXPECT_EQ(response.status, 401) << path << headers;
      EXPECT_EQ(response.Header("www-authenticate"), "Bearer");
      EXPECT_EQ(Parse(response.body)["error"]["type"], "authentication_error");
      EXPECT_EQ(Parse(response.body)["error"]["code"], "invalid_api_key");
    }
    for (const char* headers : {"Authorization: Bearer secret\r\n",
                                "authorization: bearer secret\r\n", "X-Api-Key: secret\r\n"}) {
      EXPECT_EQ(harness.Get(path, headers).status, std::string_view(path) == "/x" ? 404 : 200)
          << path << headers;
    }
  }
  // The body of who has no key is not even read.
  HttpClient client(harness.port());
  ASSERT_TRUE(
      client.SendRaw("POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n"));
  const ClientResponse refused = client.Read();
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(Parse(refused.body)["error"]["type"], "authentication_error");
  EXPECT_EQ(Parse(refused.body)["type"], "error");
}

TEST(HttpSurfaceTest, RequestIdsComeBackAndAreUnique) {
  HarnessOptions options;
  options.worker.hold_at_step = 0;
  SurfaceHarness harness(options);
  harness.Start();
  EXPECT_EQ(harness.Get("/props", "X-Request-Id: abc-1\r\n").Header("x-request-id"), "abc-1");
  EXPECT_THAT(harness.Get("/props").Header("x-request-id"), StartsWith("req-"));
  EXPECT_THAT(harness.Get("/props", "X-Request-Id: a b\r\n").Header("x-request-id"),
              StartsWith("req-"));
  EXPECT_THAT(harness.Get("/props", "X-Request-Id: " + std::string(129, 'a') + "\r\n")
                  .Header("x-request-id"),
              StartsWith("req-"));
  HttpClient first(harness.port());
  ASSERT_TRUE(first.SendRaw(HttpClient::RequestText("POST", "/v1/completions", StreamBody(3),
                                                    "X-Request-Id: twice\r\n")));
  ASSERT_TRUE(Eventually([&] { return harness.gate().running().size() == 1; }));
  const ClientResponse second =
      harness.Post("/v1/completions", StreamBody(3), "X-Request-Id: twice\r\n");
  EXPECT_EQ(second.status, 409);
  EXPECT_EQ(second.Header("x-request-id"), "twice");
  harness.worker().Release();
  EXPECT_EQ(first.Read().Header("x-request-id"), "twice");
  EXPECT_EQ(harness.Post("/v1/completions", StreamBody(3), "X-Request-Id: twice\r\n").status, 200);
}

TEST(HttpSurfaceTest, ServerErrorsHaveTheShapeOfTheApi) {
  HarnessOptions options;
  options.surface.server.max_body_bytes = 1000;
  SurfaceHarness harness(options);
  harness.Start();
  const std::string large = JsonText({{"prompt", std::string(2000, 'x')}});
  const ClientResponse openai = harness.Post("/v1/completions", large);
  EXPECT_EQ(openai.status, 413);
  EXPECT_EQ(Parse(openai.body)["error"]["type"], "invalid_request_error");
  EXPECT_EQ(harness.Post("/detokenize", large).status, 400);  // lists of ids may be longer
  EXPECT_EQ(harness.Post("/detokenize", JsonText({{"tokens", std::string(5000, 'x')}})).status,
            413);
  const ClientResponse anthropic = harness.Post("/v1/messages", large);
  EXPECT_EQ(anthropic.status, 413);
  EXPECT_EQ(Parse(anthropic.body)["error"]["type"], "request_too_large");
  HttpClient client(harness.port());
  ASSERT_TRUE(client.SendRaw("nonsense\r\n\r\n"));
  const ClientResponse malformed = client.Read();
  EXPECT_EQ(malformed.status, 400);
  EXPECT_EQ(Parse(malformed.body)["error"]["type"], "invalid_request_error");
}

// ---- clients that leave ------------------------------------------------------------------------

struct Leaving {
  const char* name;
  bool is_streamed;
  bool is_reset;  // else an orderly end
};

class HttpSurfaceLeavingTest : public ::testing::TestWithParam<Leaving> {};

TEST_P(HttpSurfaceLeavingTest, CancelsTheGeneration) {
  HarnessOptions options;
  options.worker.hold_at_step = 3;
  SurfaceHarness harness(options);
  harness.Start();
  HttpClient client(harness.port());
  const std::string body = JsonText({{"prompt", "abc"},
                                     {"max_tokens", 1000},
                                     {"ignore_eos", true},
                                     {"stream", GetParam().is_streamed}});
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("POST", "/v1/completions", body)));
  ASSERT_TRUE(Eventually([&] { return harness.engine().stats().num_running == 1; }));
  if (GetParam().is_reset) {
    client.Reset();
  } else {
    client.ShutdownSending();
  }
  // The connection goes while the worker is still held: nothing waits for it.
  EXPECT_TRUE(Eventually([&] { return harness.surface().num_connections() == 0; }));
  harness.worker().Release();
  EXPECT_TRUE(Eventually([&] { return harness.IsIdle(); }));
  const auto stats = harness.engine().stats();
  EXPECT_EQ(stats.num_finished[static_cast<size_t>(FinishReason::kCancelled)], 1);
  EXPECT_LT(stats.completion_tokens, 1000);
  EXPECT_THAT(harness.worker().violations(), ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, HttpSurfaceLeavingTest,
                         ::testing::Values(Leaving{"StreamReset", true, true},
                                           Leaving{"StreamEnd", true, false},
                                           Leaving{"UnaryReset", false, true},
                                           Leaving{"UnaryEnd", false, false}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(HttpSurfaceTest, LeavingWhileQueuedLeavesTheQueue) {
  HarnessOptions options;
  options.worker.hold_at_step = 0;
  options.worker.capacity.num_slots = 1;
  SurfaceHarness harness(options);
  harness.Start();
  HttpClient running(harness.port());
  ASSERT_TRUE(running.SendRaw(HttpClient::RequestText("POST", "/v1/completions", StreamBody(20))));
  ASSERT_TRUE(Eventually([&] { return harness.gate().running().size() == 1; }));
  HttpClient queued(harness.port());
  ASSERT_TRUE(queued.SendRaw(HttpClient::RequestText("POST", "/v1/completions", StreamBody(20))));
  ASSERT_TRUE(Eventually([&] { return harness.gate().running().size() == 2; }));
  queued.Reset();
  EXPECT_TRUE(Eventually([&] { return harness.gate().running().size() == 1; }));
  harness.worker().Release();
  EXPECT_EQ(TextOf(running.Read()), harness.Expected("abc", 20));
}

// 200 clients that leave at points spread over the life of a request.
TEST(HttpSurfaceTest, ManyThatLeaveAtAnyPointLeaveNothingBehind) {
  SurfaceHarness harness;
  harness.Start();
  for (int i = 0; i < 200; ++i) {
    HttpClient client(harness.port());
    const std::string request = HttpClient::RequestText(
        "POST", i % 2 == 0 ? "/v1/completions" : "/v1/chat/completions",
        i % 2 == 0
            ? StreamBody(400)
            : R"({"messages":[{"role":"user","content":"x"}],"max_tokens":400,"stream":true})");
    if (i % 5 == 0) {
      ASSERT_TRUE(
          client.SendRaw(std::string_view(request).substr(0, request.size() * (i % 7) / 7)));
    } else {
      ASSERT_TRUE(client.SendRaw(request));
      if (i % 5 > 1) {
        ClientResponse response = client.ReadHead();
        for (int chunks = i % 5; chunks > 2; --chunks) client.ReadChunk(response);
      }
    }
    if (i % 3 != 0) client.Reset();
  }
  EXPECT_TRUE(Eventually([&] { return harness.IsIdle(); }));
  EXPECT_TRUE(Eventually([&] { return harness.surface().num_connections() == 0; }));
  EXPECT_THAT(harness.worker().violations(), ::testing::IsEmpty());
  EXPECT_EQ(harness.Post("/v1/completions", StreamBody(5)).status, 200);
}

// ---- clients that read slowly ------------------------------------------------------------------

class HttpSurfaceSlowReaderTest : public ::testing::Test {
 protected:
  static constexpr int kNumTokens = 6000;

  static HarnessOptions Options(size_t max_buffered_bytes) {
    HarnessOptions options;
    options.worker.capacity.max_context = 8192;
    options.worker.capacity.num_pages = 256;
    options.surface.max_buffered_bytes = max_buffered_bytes;
    options.surface.server.send_buffer_bytes = 16384;
    return options;
  }
};

TEST_F(HttpSurfaceSlowReaderTest, GetsMergedEvents) {
  SurfaceHarness harness(Options(size_t{1} << 20));
  harness.Start();
  HttpClient slow(harness.port(), {.receive_buffer_bytes = 16384});
  ASSERT_TRUE(
      slow.SendRaw(HttpClient::RequestText("POST", "/v1/completions", StreamBody(kNumTokens))));
  // It reads nothing until all is generated: the generation did not wait for it.
  ASSERT_TRUE(Eventually([&] {
    return harness.engine().stats().num_finished[static_cast<size_t>(FinishReason::kMaxTokens)] ==
           1;
  }));
  const ClientResponse response = slow.Read();
  EXPECT_TRUE(response.is_complete);
  EXPECT_EQ(TextOf(response), harness.Expected("abc", kNumTokens));
  // What fits both socket buffers, twice 16 KiB each as Linux counts, came token by token in events
  // of over 100 bytes; all the rest was merged.
  EXPECT_LT(response.chunks.size(), static_cast<size_t>(kNumTokens / 2));
}

TEST_F(HttpSurfaceSlowReaderTest, IsCancelledAtTheLimitOfItsBuffer) {
  SurfaceHarness harness(Options(4096));
  harness.Start();
  HttpClient slow(harness.port(), {.receive_buffer_bytes = 16384});
  // With log-probabilities merged events are long too: 6,000 tokens of 30 bytes or more do not fit
  // the buffers of both sockets, 64 KiB as Linux counts.
  Json request = Parse(StreamBody(kNumTokens));
  request["logprobs"] = 0;
  ASSERT_TRUE(slow.SendRaw(HttpClient::RequestText("POST", "/v1/completions", JsonText(request))));
  ASSERT_TRUE(slow.ReadHead().status == 200);
  ASSERT_TRUE(Eventually([&] { return harness.gate().running().empty(); }));
  EXPECT_LT(harness.engine().stats().completion_tokens, kNumTokens);
  // Others are served meanwhile.
  EXPECT_EQ(TextOf(harness.Post("/v1/completions", StreamBody(20))), harness.Expected("abc", 20));
  // Who reads at last learns why the stream ended.
  ClientResponse rest;  // its head is read already
  while (slow.ReadChunk(rest)) {
  }
  EXPECT_TRUE(rest.is_complete);
  const std::vector<std::string> data = SseData(rest.body);
  ASSERT_FALSE(data.empty());
  EXPECT_EQ(Parse(data.back())["error"]["code"], "slow_reader");
}

// ---- waiting, loss, the end --------------------------------------------------------------------

TEST(HttpSurfaceTest, PingsDuringALongPrefill) {
  HarnessOptions options;
  options.worker.hold_at_step = 0;
  options.surface.server.ping_seconds = 0.02;
  SurfaceHarness harness(options);
  harness.Start();
  HttpClient client(harness.port());
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("POST", "/v1/completions", StreamBody(5))));
  ClientResponse response = client.ReadHead();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(client.ReadChunk(response), ": ping\n\n");
  EXPECT_EQ(client.ReadChunk(response), ": ping\n\n");
  harness.worker().Release();
  while (client.ReadChunk(response)) {
  }
  EXPECT_EQ(TextOf(response), harness.Expected("abc", 5));
}

TEST(HttpSurfaceTest, AWorkerLostBeforeTheFirstByteIs503) {
  HarnessOptions options;
  options.worker.fail_at_step = 0;
  SurfaceHarness harness(options);
  harness.Start();
  for (const char* stream : {"true", "false"}) {
    const ClientResponse response =
        harness.Post("/v1/completions", fmt::format(R"({{"prompt":"abc","stream":{}}})", stream));
    EXPECT_EQ(response.status, 503) << response.body;
    EXPECT_EQ(Parse(response.body)["error"]["type"], "server_error");
  }
  EXPECT_EQ(harness.Get("/health").status, 503);
}

TEST(HttpSurfaceTest, AWorkerLostLaterIsAnEventInTheStream) {
  HarnessOptions options;
  options.worker.hold_at_step = 3;
  options.worker.fail_at_step = 5;
  SurfaceHarness harness(options);
  harness.Start();
  HttpClient client(harness.port());
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("POST", "/v1/completions", StreamBody(100))));
  ClientResponse response = client.ReadHead();
  ASSERT_EQ(response.status, 200);
  harness.worker().Release();
  while (client.ReadChunk(response)) {
  }
  EXPECT_TRUE(response.is_complete);
  const std::vector<std::string> data = SseData(response.body);
  ASSERT_GE(data.size(), 2u);
  EXPECT_EQ(Parse(data.back())["error"]["type"], "server_error");
  std::string text;
  for (size_t i = 0; i + 1 < data.size(); ++i) {
    text += Parse(data[i])["choices"][0]["text"].get<std::string>();
  }
  // All that was generated before the loss: five steps, the first of which took the prompt.
  EXPECT_EQ(text, harness.Expected("abc", 5));
}

TEST(HttpSurfaceTest, DrainingLetsStreamsEndAndRefusesNewOnes) {
  HarnessOptions options;
  options.worker.hold_at_step = 3;
  SurfaceHarness harness(options);
  harness.Start();
  HttpClient client(harness.port());
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("POST", "/v1/completions", StreamBody(50))));
  ASSERT_TRUE(Eventually([&] { return harness.gate().running().size() == 1; }));
  harness.surface().BeginDrain();
  EXPECT_EQ(harness.Get("/health").status, 503);
  const ClientResponse refused = harness.Post("/v1/completions", StreamBody(5));
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.Header("retry-after"), "");
  harness.worker().Release();
  std::thread stopping([&] { harness.surface().Stop(30); });
  const ClientResponse response = client.Read();
  EXPECT_TRUE(response.is_complete);
  EXPECT_EQ(TextOf(response), harness.Expected("abc", 50));
  client.Reset();
  stopping.join();
}

TEST(HttpSurfaceTest, CancelledByTheServerSaysSo) {
  HarnessOptions options;
  options.worker.hold_at_step = 3;
  SurfaceHarness harness(options);
  harness.Start();
  HttpClient unary(harness.port());
  ASSERT_TRUE(unary.SendRaw(HttpClient::RequestText(
      "POST", "/v1/completions", R"({"prompt":"abc","max_tokens":900,"ignore_eos":true})")));
  ASSERT_TRUE(Eventually([&] { return harness.gate().running().size() == 1; }));
  harness.gate().BeginDrain();
  harness.gate().CancelAll();
  harness.worker().Release();
  const ClientResponse response = unary.Read();
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(Parse(response.body)["error"]["type"], "unavailable_error");
}

// Texts that take long to tokenise must not hold up streams: all IO threads stay free.
TEST(HttpSurfaceTest, LongTextsDoNotBlockShortRequests) {
  HarnessOptions options;
  options.surface.server.num_io_threads = 1;
  options.surface.server.num_background_threads = 1;
  SurfaceHarness harness(options);
  harness.Start();
  std::atomic<bool> is_blocked = true;
  // Fills the background: what runs there stands for a long text, for as long as the test wants.
  harness.surface().RunInBackground([&] {
    while (is_blocked) std::this_thread::yield();
  });
  HttpClient waiting(harness.port());
  ASSERT_TRUE(waiting.SendRaw(HttpClient::RequestText(
      "POST", "/tokenize", JsonText({{"content", std::string(size_t{2} << 20, 'A')}}))));
  EXPECT_EQ(harness.Get("/health").status, 200);
  EXPECT_EQ(harness.Get("/metrics").status, 200);
  is_blocked = false;
  const ClientResponse response = waiting.Read();
  EXPECT_EQ(response.status, 200);
}

TEST(HttpSurfaceTest, MoreRoutesCanBeAdded) {
  SurfaceHarness harness;
  harness.surface().AddRoute({"GET", "/api/", true, false, [](ApiCall call) {
                                call.Send(Json{{"path", call.request.path()}});
                              }});
  harness.Start();
  EXPECT_EQ(Parse(harness.Get("/api/plan?x=1").body)["path"], "/api/plan");
  EXPECT_EQ(harness.Post("/api/plan", "{}").status, 405);
}

}  // namespace
}  // namespace switchyard::coordinator::http
