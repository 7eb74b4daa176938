// Fuzz target: bodies of HTTP requests through the APIs, up to the answer.
//
// Input: the first byte chooses the endpoint, the rest is the body. Checked: nothing crashes, every
// request is answered exactly once, with a status that its endpoint may give, in valid JSON.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "base/check.h"
#include "coordinator/http/anthropic_api.h"
#include "coordinator/http/native_api.h"
#include "coordinator/http/openai_api.h"
#include "testing/byte_tokenizer.h"

namespace switchyard::coordinator::http {
namespace {

// Ends every generation at once with a text that has something of everything.
class InstantGenerator : public Generator {
 public:
  absl::StatusOr<uint64_t> Start(GenerationRequest request, EventCallback callback) override {
    GenerationEvent event;
    event.started = true;
    event.text =
        "<think>\nhm\n</think>\n\ntext <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n";
    event.token_ids = {1, 2};
    if (request.num_logprobs) {
      event.logprobs = {{.token_id = 1, .logprob = -1.0f, .top = {{1, -1.0f}, {200, -3.0f}}}};
    }
    callback(event);
    event = GenerationEvent();
    event.finished = true;
    event.reason = FinishReason::kMaxTokens;
    callback(event);
    return ++id_;
  }
  void Cancel(uint64_t) override {}

 private:
  uint64_t id_ = 0;
};

// Keeps what is sent; what is posted runs when the test says so.
class KeepingResponder : public HttpResponder {
 public:
  void SetCallbacks(Callbacks callbacks) override { callbacks_ = std::move(callbacks); }
  void Post(std::function<void()> work) override { work_.push_back(std::move(work)); }
  void Send(HttpResponse response) override {
    SWITCHYARD_CHECK(!is_answered_ && !has_sent_);
    is_answered_ = true;
    status_ = response.status;
    body_ = std::move(response.body);
  }
  void StartStream(HttpStreamHead) override { is_stream_ = true; }
  void Write(std::string data) override {
    SWITCHYARD_CHECK(is_stream_ && !is_answered_);
    has_sent_ = true;
    body_ += data;
  }
  void Finish() override {
    SWITCHYARD_CHECK(is_stream_ && !is_answered_);
    is_answered_ = true;
    status_ = 200;
  }
  void Abort() override { Finish(); }
  bool is_writable() const override { return true; }
  bool has_sent() const override { return has_sent_; }

  void RunAll() {
    while (!work_.empty()) {
      const auto work = std::move(work_.front());
      work_.pop_front();
      work();
    }
    callbacks_ = {};
  }
  bool is_answered() const { return is_answered_; }
  bool is_stream() const { return is_stream_ && has_sent_; }
  int status() const { return status_; }
  const std::string& body() const { return body_; }

 private:
  Callbacks callbacks_;
  std::deque<std::function<void()>> work_;
  bool is_answered_ = false;
  bool is_stream_ = false;
  bool has_sent_ = false;
  int status_ = 0;
  std::string body_;
};

// One server for all inputs.
struct Server {
  model::Tokenizer tokenizer = testing::ByteTokenizer();
  model::ChatTemplate chat_template = model::ChatTemplate::BuiltInChatMl();
  model::ModelSpec spec{};
  InstantGenerator generator{};
  ServingMetrics metrics{ServingMetricsOptions{.model = "m"}};
  RequestGate gate{generator, metrics};
  ServedModel model{.name = "m",
                    .spec = spec,
                    .tokenizer = tokenizer,
                    .chat_template = chat_template,
                    .max_context = 1024,
                    .digest = "",
                    .path_name = "",
                    .plan_id = ""};
  ApiContext context{.model = model,
                     .gate = gate,
                     .metrics = metrics,
                     .stats = [] { return EngineStats(); },
                     .max_buffered_bytes = size_t{1} << 20,
                     .version = ""};
  OpenAiApi openai{context};
  AnthropicApi anthropic{context};
  NativeApi native{context};

  Server() { gate.SetEngineState(EngineState::kServing); }
};

// Every event of a stream is a JSON text or the end mark.
void CheckStream(std::string_view body) {
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    SWITCHYARD_CHECK(end != std::string_view::npos);
    const std::string_view event = body.substr(0, end);
    body.remove_prefix(end + 2);
    const size_t data = event.find("data: ");
    SWITCHYARD_CHECK(data != std::string_view::npos);
    const std::string_view text = event.substr(data + 6);
    SWITCHYARD_CHECK(text == "[DONE]" || ParseJson(text).ok());
  }
}

void RunOneInput(std::string_view input) {
  static Server& server = *new Server;
  if (input.empty()) return;
  const auto responder = std::make_shared<KeepingResponder>();
  ApiCall call;
  call.request_id = "id";
  call.responder = responder;
  call.request.body = input.substr(1);
  switch (static_cast<uint8_t>(input[0]) % 7) {
    case 0:
      server.openai.Completions(std::move(call));
      break;
    case 1:
      server.anthropic.Messages(std::move(call));
      break;
    case 2:
      server.anthropic.CountTokens(std::move(call));
      break;
    case 3:
      server.native.Tokenize(std::move(call));
      break;
    case 4:
      server.native.Detokenize(std::move(call));
      break;
    case 5:
      server.native.ApplyTemplate(std::move(call));
      break;
    default:
      server.openai.ChatCompletions(std::move(call));
      break;
  }
  responder->RunAll();
  SWITCHYARD_CHECK(responder->is_answered());
  static const std::set<int> kStatuses = {200, 400, 404, 501};
  SWITCHYARD_CHECK(kStatuses.contains(responder->status()));
  if (responder->is_stream()) {
    CheckStream(responder->body());
  } else {
    SWITCHYARD_CHECK(ParseJson(responder->body()).ok());
  }
}

}  // namespace
}  // namespace switchyard::coordinator::http

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  switchyard::coordinator::http::RunOneInput({reinterpret_cast<const char*>(data), size});
  return 0;
}
