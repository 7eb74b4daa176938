// The HTTP server over real sockets, with handlers made for each test.
#include "coordinator/http/http_server.h"

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/check.h"
#include "testing/http_client.h"

namespace switchyard::coordinator::http {
namespace {

using switchyard::testing::ClientResponse;
using switchyard::testing::HttpClient;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A moment that another thread waits for; gives up after 30 s.
class Event {
 public:
  void Set() {
    std::lock_guard lock(mutex_);
    is_set_ = true;
    changed_.notify_all();
  }
  bool Wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return is_set_; });
  }
  bool is_set() {
    std::lock_guard lock(mutex_);
    return is_set_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_set_ = false;
};

using Answer = std::function<void(HttpRequest, std::shared_ptr<HttpResponder>)>;

class Handler : public HttpHandler {
 public:
  std::optional<HttpResponse> Refuse(const HttpRequest& head) override {
    if (head.path() != "/refused") return std::nullopt;
    return HttpResponse{.status = 401, .body = "who are you"};
  }
  void Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) override {
    const auto found = answers.find(std::string(request.path()));
    if (found == answers.end()) {
      responder->Send({.status = 404, .body = "nothing here"});
    } else {
      found->second(std::move(request), std::move(responder));
    }
  }
  HttpResponse ErrorResponse(int status, std::string_view message, const HttpRequest*) override {
    return {.status = status, .body = std::string(message)};
  }

  std::map<std::string, Answer> answers;
};

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    options_.port = 0;
    handler_.answers["/echo"] = [](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
      responder->Send({.status = 200, .body = request.method + " " + request.body});
    };
  }

  HttpServer& Start() {
    server_ = std::make_unique<HttpServer>(handler_, options_);
    SWITCHYARD_CHECK(server_->Start().ok());
    return *server_;
  }
  uint16_t port() const { return server_->port(); }

  // Status that the server gives to `bytes` on a connection of their own, and whether it then
  // closes it.
  std::pair<int, bool> StatusOf(std::string_view bytes) {
    HttpClient client(port());
    SWITCHYARD_CHECK(client.SendRaw(bytes));
    const int status = client.Read().status;
    return {status, client.WaitForClose()};
  }

  Handler handler_;
  HttpServerOptions options_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersManyRequestsOnOneConnection) {
  Start();
  HttpClient client(port());
  for (int i = 0; i < 5; ++i) {
    const std::string body = "body " + std::to_string(i);
    const ClientResponse response = client.Request("POST", "/echo?x=1", body);
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "POST " + body);
    EXPECT_EQ(response.Header("connection"), "");
    EXPECT_THAT(response.Header("date"), HasSubstr(" GMT"));
  }
  EXPECT_EQ(client.Request("GET", "/nothing").status, 404);
  EXPECT_EQ(server_->num_connections(), 1);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Start();
  HttpClient client(port());
  std::string text;
  for (int i = 0; i < 50; ++i) text += HttpClient::RequestText("POST", "/echo", std::to_string(i));
  ASSERT_TRUE(client.SendRaw(text));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.Read().body, "POST " + std::to_string(i));
}

TEST_F(HttpServerTest, KeepsWhatIsSentAheadWhileARequestRuns) {
  std::shared_ptr<HttpResponder> waiting;
  Event handled;
  handler_.answers["/slow"] = [&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    waiting = std::move(responder);
    handled.Set();
  };
  Start();
  HttpClient client(port());
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("GET", "/slow")));
  ASSERT_TRUE(handled.Wait());
  // More than is read ahead: the rest waits in the socket.
  const std::string large(40000, 'x');
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("POST", "/echo", "first") +
                             HttpClient::RequestText("POST", "/echo", large)));
  waiting->Send({.status = 200, .body = "slow"});
  EXPECT_EQ(client.Read().body, "slow");
  EXPECT_EQ(client.Read().body, "POST first");
  EXPECT_EQ(client.Read().body, "POST " + large);
}

TEST_F(HttpServerTest, HeadHasTheHeadOfGetAndNoBody) {
  Start();
  HttpClient client(port());
  const ClientResponse head = client.Request("HEAD", "/echo");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.Header("content-length"), "4");  // of "GET "
  EXPECT_EQ(client.Request("GET", "/echo").body, "GET ");
}

TEST_F(HttpServerTest, Http10ClosesUnlessAskedNotTo) {
  Start();
  EXPECT_EQ(StatusOf("GET /echo HTTP/1.0\r\n\r\n"), std::pair(200, true));
  HttpClient client(port());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client.SendRaw("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    const ClientResponse response = client.Read();
    EXPECT_EQ(response.body, "GET ");
    EXPECT_EQ(response.Header("connection"), "keep-alive");
  }
}

TEST_F(HttpServerTest, ConnectionCloseIsObeyed) {
  Start();
  EXPECT_EQ(StatusOf(HttpClient::RequestText("GET", "/echo", "", "Connection: close\r\n")),
            std::pair(200, true));
}

TEST_F(HttpServerTest, SaysContinueToWhoWaitsForIt) {
  Start();
  HttpClient client(port());
  ASSERT_TRUE(client.SendRaw(
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"));
  EXPECT_EQ(client.Read().status, 100);
  ASSERT_TRUE(client.SendRaw("ab"));
  EXPECT_EQ(client.Read().body, "POST ab");
  EXPECT_EQ(StatusOf("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: x\r\n\r\n"),
            std::pair(417, true));
  // A body that is refused anyway is not asked for.
  EXPECT_EQ(StatusOf("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n"
                     "Expect: 100-continue\r\n\r\n"),
            std::pair(413, true));
}

TEST_F(HttpServerTest, TakesChunkedBodies) {
  Start();
  HttpClient client(port());
  ASSERT_TRUE(
      client.SendRaw("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                     "3\r\nabc\r\n2;name=value\r\nde\r\n0\r\nTrailer: x\r\n\r\n"));
  EXPECT_EQ(client.Read().body, "POST abcde");
  EXPECT_EQ(client.Request("GET", "/echo").status, 200);
}

TEST_F(HttpServerTest, BodyLimitIsExactInBothCodings) {
  options_.max_body_bytes = 1000;
  Start();
  const auto chunked = [](size_t bytes) {
    std::string text = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (size_t i = 0; i < bytes; ++i) text += "1\r\nx\r\n";
    return text + "0\r\n\r\n";
  };
  HttpClient client(port());
  EXPECT_EQ(client.Request("POST", "/echo", std::string(1000, 'x')).status, 200);
  ASSERT_TRUE(client.SendRaw(chunked(1000)));
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(StatusOf(HttpClient::RequestText("POST", "/echo", std::string(1001, 'x'))),
            std::pair(413, true));
  EXPECT_EQ(StatusOf(chunked(1001)), std::pair(413, true));
}

// Goes on sending after the limit, as clients do that read the response at the end only.
TEST_F(HttpServerTest, AllBodiesTogetherHaveALimit) {
  options_.max_body_bytes = 100;
  options_.max_total_body_bytes = 150;
  std::vector<HttpRequest> held;
  std::vector<std::shared_ptr<HttpResponder>> responders;
  Event is_held;
  handler_.answers["/hold"] = [&](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
    held.push_back(std::move(request));
    responders.push_back(std::move(responder));
    is_held.Set();
  };
  Start();
  HttpClient first(port());
  ASSERT_TRUE(first.SendRaw("POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 60\r\n\r\n" +
                            std::string(60, 'x')));
  ASSERT_TRUE(is_held.Wait());
  // 91 more are one too many, and so is a body that may have 100.
  for (const std::string length : {"Content-Length: 91", "Transfer-Encoding: chunked"}) {
    HttpClient client(port());
    ASSERT_TRUE(client.SendRaw("POST /echo HTTP/1.1\r\nHost: a\r\n" + length + "\r\n\r\n"));
    const ClientResponse refused = client.Read();
    EXPECT_EQ(refused.status, 503) << length;
    EXPECT_EQ(refused.Header("retry-after"), "1");
  }
  EXPECT_EQ(HttpClient(port()).Request("POST", "/echo", std::string(90, 'y')).status, 200);
  responders[0]->Send({.status = 200});
  EXPECT_EQ(first.Read().status, 200);
  held.clear();
  // Everything is given back: the bytes of a request when it goes, which may be just after its
  // answer was read.
  for (int i = 0; i < 3; ++i) {
    unsigned status = 503;
    for (int attempt = 0; attempt < 1000 && status == 503; ++attempt) {
      status = HttpClient(port()).Request("POST", "/echo", std::string(100, 'z')).status;
    }
    EXPECT_EQ(status, 200u);
  }
}

TEST_F(HttpServerTest, AnUploadOverTheLimitStillReadsItsAnswer) {
  options_.max_body_bytes = 100000;
  Start();
  HttpClient client(port());
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("POST", "/echo", std::string(3000000, 'x'))));
  EXPECT_EQ(client.Read().status, 413);
}

TEST_F(HttpServerTest, HeadLimitCountsEveryByte) {
  options_.max_header_bytes = 1024;
  Start();
  const auto request = [](size_t bytes) {
    std::string text = "GET /echo HTTP/1.1\r\nHost: a\r\nX: ";
    return text + std::string(bytes - text.size() - 4, 'x') + "\r\n\r\n";
  };
  HttpClient client(port());
  ASSERT_TRUE(client.SendRaw(request(1000)));
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(StatusOf(request(1100)), std::pair(431, true));
  EXPECT_EQ(StatusOf(std::string(100000, 'a')).second, true);
  EXPECT_EQ(StatusOf("GET /" + std::string(5000, 'a') + " HTTP/1.1\r\n\r\n"), std::pair(431, true));
  std::string many = "GET /echo HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 500; ++i) many += "A: b\r\n";
  EXPECT_EQ(StatusOf(many + "\r\n"), std::pair(431, true));
}

TEST_F(HttpServerTest, RefusesMalformedHttp) {
  Start();
  for (const std::string_view bytes : {
           "\r\n\r\n\r\n",
           "hello\r\n\r\n",
           "GET\r\n\r\n",
           "GET /echo\r\n\r\n",
           "GET  /echo HTTP/1.1\r\n\r\n",
           "GET /echo HTTP/9.9\r\nHost: a\r\n\r\n",
           "GET /echo HTTP/1.1\r\nHost a\r\n\r\n",
           "GET /echo HTTP/1.1\r\n: a\r\n\r\n",
           "GET /echo HTTP/1.1\nHost: a\n\n",
           "G\x01T /echo HTTP/1.1\r\nHost: a\r\n\r\n",
           "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
           "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n",
           "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
           "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n"
           "\r\n0\r\n\r\n",
           "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
           "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
           "fffffffffffffffff\r\nx\r\n\r\n",
           "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxyz\r\n",
           "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "GET /echo HTTP/1.1\r\n\r\n",
       }) {
    EXPECT_EQ(StatusOf(bytes), std::pair(400, true)) << bytes;
  }
  EXPECT_EQ(StatusOf("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n").first,
            501);
  EXPECT_EQ(StatusOf("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\n"
                     "Content-Length: 2\r\n\r\nab")
                .first,
            415);
  HttpClient client(port());
  EXPECT_EQ(client.Request("GET", "/echo").status, 200);
}

TEST_F(HttpServerTest, GivesUpOnSlowHeadsBodiesAndIdleConnections) {
  options_.header_seconds = 0.05;
  options_.body_seconds = 0.05;
  options_.idle_seconds = 0.05;
  Start();
  EXPECT_EQ(StatusOf("GET /echo HTT"), std::pair(408, true));
  EXPECT_EQ(StatusOf("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab"),
            std::pair(408, true));
  HttpClient silent(port());
  EXPECT_TRUE(silent.WaitForClose());
  HttpClient idle(port());
  EXPECT_EQ(idle.Request("GET", "/echo").status, 200);
  EXPECT_TRUE(idle.WaitForClose());
}

// Bytes that keep coming do not stretch the limit.
TEST_F(HttpServerTest, TheHeadLimitHoldsForTheWholeHead) {
  options_.header_seconds = 0.2;
  options_.linger_seconds = 0.1;
  Start();
  HttpClient client(port());
  ASSERT_TRUE(client.SendRaw("GET /echo HTTP/1.1\r\nHost: a\r\nX: "));
  std::thread dripping([&] {
    while (client.SendRaw("x")) std::this_thread::yield();
  });
  EXPECT_THAT(client.Read().status, ::testing::AnyOf(408, 431));
  dripping.join();
}

TEST_F(HttpServerTest, ConnectionsOverTheLimitAreToldSo) {
  options_.max_connections = 2;
  Start();
  auto first = std::make_unique<HttpClient>(port());
  EXPECT_EQ(first->Request("GET", "/echo").status, 200);
  HttpClient second(port());
  EXPECT_EQ(second.Request("GET", "/echo").status, 200);
  HttpClient third(port());
  const ClientResponse refusal = third.Request("GET", "/echo");
  EXPECT_EQ(refusal.status, 503);
  EXPECT_EQ(refusal.Header("retry-after"), "1");
  EXPECT_TRUE(third.WaitForClose());
  first.reset();
  // The place is free as soon as the server has seen the end of the first one.
  int status = 0;
  for (int i = 0; i < 10000 && status != 200; ++i) {
    HttpClient next(port());
    status = next.Request("GET", "/echo").status;
  }
  EXPECT_EQ(status, 200);
}

TEST_F(HttpServerTest, ServesManyConnectionsAtOnce) {
  Start();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 300; ++i) clients.push_back(std::make_unique<HttpClient>(port()));
  for (auto& client : clients) {
    ASSERT_TRUE(client->SendRaw(HttpClient::RequestText("POST", "/echo", "x")));
  }
  for (auto& client : clients) EXPECT_EQ(client->Read().body, "POST x");
  EXPECT_EQ(server_->num_connections(), 300);
}

class HttpServerLeavingTest : public HttpServerTest {
 protected:
  HttpServerLeavingTest() {
    handler_.answers["/wait"] = [this](HttpRequest, std::shared_ptr<HttpResponder> responder) {
      auto kept = responder;
      responder->SetCallbacks({.on_closed = [this, kept]() mutable {
        kept.reset();
        closed_.Set();
      }});
      handled_.Set();
    };
    handler_.answers["/stream"] = [this](HttpRequest, std::shared_ptr<HttpResponder> responder) {
      auto kept = responder;
      responder->SetCallbacks({.on_closed = [this, kept]() mutable {
        kept.reset();
        closed_.Set();
      }});
      responder->StartStream({});
      responder->Write("data: 1\n\n");
      handled_.Set();
    };
  }
  Event handled_;
  Event closed_;
};

TEST_F(HttpServerLeavingTest, AResetIsNoticedWhileARequestRuns) {
  Start();
  for (const char* target : {"/wait", "/stream"}) {
    HttpClient client(port());
    ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("GET", target)));
    ASSERT_TRUE(handled_.Wait());
    client.Reset();
    EXPECT_TRUE(closed_.Wait()) << target;
  }
}

TEST_F(HttpServerLeavingTest, AnEndIsNoticedBehindWhatWasSentAhead) {
  Start();
  HttpClient client(port());
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("GET", "/wait") +
                             HttpClient::RequestText("POST", "/echo", std::string(9000, 'x'))));
  ASSERT_TRUE(handled_.Wait());
  client.ShutdownSending();
  EXPECT_TRUE(closed_.Wait());
  EXPECT_TRUE(client.WaitForClose());
}

TEST_F(HttpServerLeavingTest, AResetIsNoticedBehindMoreThanIsReadAhead) {
  Start();
  HttpClient client(port());
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("GET", "/wait") + std::string(60000, 'x')));
  ASSERT_TRUE(handled_.Wait());
  client.Reset();
  EXPECT_TRUE(closed_.Wait());
}

TEST_F(HttpServerLeavingTest, WhoEndsAfterAQuickRequestGetsTheAnswer) {
  Start();
  HttpClient client(port());
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("GET", "/echo")));
  client.ShutdownSending();
  EXPECT_EQ(client.Read().body, "GET ");
  EXPECT_TRUE(client.WaitForClose());
}

TEST_F(HttpServerTest, StreamsChunksAndEnds) {
  handler_.answers["/stream"] = [&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    server_->RunInBackground([responder] {
      responder->StartStream({.headers = {{"X-Test", "1"}}});
      responder->Write("data: 1\n\n");
      responder->Write("data: 2\n\n");
      responder->Finish();
    });
  };
  Start();
  HttpClient client(port());
  for (int i = 0; i < 3; ++i) {
    const ClientResponse response = client.Request("GET", "/stream");
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.Header("x-test"), "1");
    EXPECT_THAT(response.Header("content-type"), StartsWith("text/event-stream"));
    EXPECT_EQ(response.body, "data: 1\n\ndata: 2\n\n");
    EXPECT_TRUE(response.is_complete);
  }
  ASSERT_TRUE(client.SendRaw("GET /stream HTTP/1.0\r\n\r\n"));
  const ClientResponse old = client.Read();
  EXPECT_EQ(old.Header("transfer-encoding"), "");
  EXPECT_EQ(old.body, "data: 1\n\ndata: 2\n\n");
}

TEST_F(HttpServerTest, AStreamThatSentNothingMayStillBecomeAnError) {
  handler_.answers["/fails"] = [](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->StartStream({});
    responder->Send({.status = 503, .body = "lost"});
  };
  handler_.answers["/breaks"] = [](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->StartStream({});
    responder->Write("data: 1\n\n");
    responder->Abort();
  };
  Start();
  HttpClient client(port());
  EXPECT_EQ(client.Request("GET", "/fails").status, 503);
  const ClientResponse broken = client.Request("GET", "/breaks");
  EXPECT_EQ(broken.body, "data: 1\n\n");
  EXPECT_FALSE(broken.is_complete);
  EXPECT_TRUE(client.WaitForClose());
}

TEST_F(HttpServerTest, PingsWhileNothingIsReady) {
  options_.ping_seconds = 0.02;
  std::shared_ptr<HttpResponder> kept;
  handler_.answers["/stream"] = [&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->StartStream({});
    kept = std::move(responder);
  };
  Start();
  HttpClient client(port());
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("GET", "/stream")));
  ClientResponse response = client.ReadHead();  // the first ping brings it
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(client.ReadChunk(response), ": ping\n\n");
  EXPECT_EQ(client.ReadChunk(response), ": ping\n\n");
  kept->Write("data: 1\n\n");
  kept->Finish();
  while (client.ReadChunk(response)) {
  }
  EXPECT_TRUE(response.is_complete);
  EXPECT_THAT(response.body, ::testing::EndsWith("data: 1\n\n"));
}

TEST_F(HttpServerTest, TellsWhenAStreamCanTakeMore) {
  constexpr int kNumWrites = 200;
  int num_writes = 0;
  handler_.answers["/stream"] = [&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->StartStream({});
    const std::weak_ptr<HttpResponder> weak = responder;
    auto kept = responder;
    responder->SetCallbacks({.on_writable = [&, kept] {
      EXPECT_TRUE(kept->is_writable());
      EXPECT_TRUE(kept->has_sent());
      kept->Write("x");
      EXPECT_FALSE(kept->is_writable());
      if (++num_writes == kNumWrites) kept->Finish();
    }});
    responder->Write("x");
  };
  Start();
  HttpClient client(port());
  const ClientResponse response = client.Request("GET", "/stream");
  EXPECT_EQ(response.body, std::string(kNumWrites + 1, 'x'));
  EXPECT_EQ(response.chunks.size(), static_cast<size_t>(kNumWrites + 1));
}

TEST_F(HttpServerTest, AClientThatTakesNothingIsGivenUp) {
  options_.write_stall_seconds = 0.1;
  options_.send_buffer_bytes = 16384;
  Event closed;
  handler_.answers["/stream"] = [&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    auto kept = responder;
    responder->SetCallbacks({.on_closed = [&closed, kept]() mutable {
      kept.reset();
      closed.Set();
    }});
    responder->StartStream({});
    responder->Write(std::string(8 << 20, 'x'));
  };
  Start();
  HttpClient client(port(), {.receive_buffer_bytes = 16384});
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("GET", "/stream")));
  EXPECT_TRUE(closed.Wait());
  EXPECT_FALSE(client.Read().is_complete);
}

TEST_F(HttpServerTest, AForgottenRequestIsAnsweredWith500) {
  handler_.answers["/forgotten"] = [](HttpRequest, std::shared_ptr<HttpResponder>) {};
  Start();
  HttpClient client(port());
  EXPECT_EQ(client.Request("GET", "/forgotten").status, 500);
  EXPECT_EQ(client.Request("GET", "/echo").status, 200);
}

TEST_F(HttpServerTest, RefusesBeforeTheBodyIsRead) {
  Start();
  EXPECT_EQ(StatusOf("POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"),
            std::pair(401, true));
  HttpClient client(port());
  EXPECT_EQ(client.Request("GET", "/refused").status, 401);
  EXPECT_EQ(client.Request("GET", "/echo").status, 200);
}

TEST_F(HttpServerTest, StopLetsRunningResponsesEnd) {
  std::shared_ptr<HttpResponder> running;
  Event handled;
  handler_.answers["/stream"] = [&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->StartStream({});
    responder->Write("data: 1\n\n");
    running = std::move(responder);
    handled.Set();
  };
  Start();
  HttpClient idle(port());
  EXPECT_EQ(idle.Request("GET", "/echo").status, 200);
  HttpClient client(port());
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("GET", "/stream")));
  ASSERT_TRUE(handled.Wait());
  std::thread stopping([&] { server_->Stop(/*patience_seconds=*/30); });
  EXPECT_TRUE(idle.WaitForClose());  // so the stop has begun
  running->Write("data: 2\n\n");
  running->Finish();
  const ClientResponse response = client.Read();
  EXPECT_EQ(response.body, "data: 1\n\ndata: 2\n\n");
  EXPECT_TRUE(response.is_complete);
  // The response ends the connection, which the client now closes too.
  EXPECT_TRUE(client.WaitForClose());
  client.Reset();
  stopping.join();
  HttpClient late(port());
  EXPECT_FALSE(late.is_connected());
}

TEST_F(HttpServerTest, StopEndsWhatDoesNotEndInTime) {
  std::shared_ptr<HttpResponder> running;
  Event handled;
  Event closed;
  handler_.answers["/wait"] = [&](HttpRequest, std::shared_ptr<HttpResponder> responder) {
    responder->SetCallbacks({.on_closed = [&] { closed.Set(); }});
    running = std::move(responder);
    handled.Set();
  };
  Start();
  HttpClient client(port());
  ASSERT_TRUE(client.SendRaw(HttpClient::RequestText("GET", "/wait")));
  ASSERT_TRUE(handled.Wait());
  server_->Stop(/*patience_seconds=*/0);
  EXPECT_TRUE(closed.is_set());
  EXPECT_EQ(server_->num_connections(), 0);
  EXPECT_TRUE(client.WaitForClose());
  server_.reset();
  running->Send({.status = 200});  // into nothing
  running.reset();
}

TEST_F(HttpServerTest, SaysWhyItCannotStart) {
  Start();
  Handler handler;
  HttpServer second(handler, {.port = port()});
  const absl::Status in_use = second.Start();
  EXPECT_EQ(in_use.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(in_use.message()), HasSubstr("cannot listen on 127.0.0.1:"));
  HttpServer named(handler, {.address = "example", .port = 0});
  EXPECT_EQ(named.Start().code(), absl::StatusCode::kInvalidArgument);
}

TEST(IsLoopbackTest, KnowsAddressesOfThisMachine) {
  for (const char* address :
       {"127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0", "::", "10.0.0.1", "example.org", "", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

}  // namespace
}  // namespace switchyard::coordinator::http
