// The HTTP surface on an engine with the fake worker, over real sockets.
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "coordinator/engine.h"
#include "coordinator/http/http_surface.h"
#include "coordinator/http/json_text.h"
#include "coordinator/request_gate.h"
#include "coordinator/served_model.h"
#include "coordinator/serving_metrics.h"
#include "testing/byte_tokenizer.h"
#include "testing/fake_worker.h"
#include "testing/http_client.h"

namespace switchyard::coordinator::http {

using switchyard::testing::ClientResponse;
using switchyard::testing::HttpClient;
using switchyard::testing::SseData;

// Looks until `condition` holds; false after 30 s.
inline bool Eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

inline Json Parse(std::string_view text) {
  auto json = ParseJson(text);
  return json.ok() ? *std::move(json) : Json("not JSON: " + std::string(text));
}

struct HarnessOptions {
  testing::FakeWorker::Options worker = DefaultWorker();
  HttpSurfaceOptions surface{};
  int max_waiting = 256;
  const ApiKeys* keys = nullptr;
  // Source of the chat template; "" = the built-in one.
  std::string chat_template{};

  static testing::FakeWorker::Options DefaultWorker() {
    testing::FakeWorker::Options options;
    options.capacity = {.num_slots = 4,
                        .num_pages = 128,
                        .num_checkpoints = 8,
                        .max_context = 1024,
                        .max_step_rows = 256};
    options.first_token = 'a' - '!';  // byte tokens begin at '!'
    options.eos = 257;
    return options;
  }
};

class SurfaceHarness {
 public:
  explicit SurfaceHarness(HarnessOptions options = {})
      : options_(std::move(options)),
        tokenizer_(testing::ByteTokenizer()),
        chat_template_(MakeTemplate(options_.chat_template)),
        metrics_({.model = "fake"}) {
    spec_.architecture = "fake";
    EngineOptions engine_options;
    engine_options.max_waiting = options_.max_waiting;
    engine_options.on_state_change = [this](EngineState state) {
      if (RequestGate* const gate = gate_pointer_.load()) gate->SetEngineState(state);
    };
    auto worker = std::make_unique<testing::FakeWorker>(options_.worker);
    worker_ = worker.get();
    engine_ = std::make_unique<Engine>(std::move(worker), tokenizer_, engine_options);
    gate_ = std::make_unique<RequestGate>(*engine_, metrics_);
    gate_pointer_.store(gate_.get());
    gate_->SetEngineState(engine_->state());
    metrics_.SetEngineSource([this] { return engine_->stats(); });
    model_ = std::make_unique<ServedModel>(
        ServedModel{.name = "fake-model",
                    .created_unix_seconds = 1700000000,
                    .spec = spec_,
                    .tokenizer = tokenizer_,
                    .chat_template = chat_template_,
                    .max_context = options_.worker.capacity.max_context,
                    .file_bytes = 1000,
                    .digest = "abcd",
                    .path_name = "fake.gguf",
                    .plan_id = "plan-1"});
    options_.surface.server.port = 0;
    surface_ = std::make_unique<HttpSurface>(
        *model_, *gate_, metrics_, [this] { return engine_->stats(); }, options_.keys,
        options_.surface);
  }

  ~SurfaceHarness() {
    surface_.reset();
    gate_pointer_.store(nullptr);
    gate_.reset();
  }

  SurfaceHarness& Start() {
    SWITCHYARD_CHECK(surface_->Start().ok());
    if (options_.worker.ready_at_start) {
      SWITCHYARD_CHECK(Eventually([&] { return gate_->is_ready(); }));
    }
    return *this;
  }

  HttpSurface& surface() { return *surface_; }
  RequestGate& gate() { return *gate_; }
  Engine& engine() { return *engine_; }
  testing::FakeWorker& worker() { return *worker_; }
  uint16_t port() const { return surface_->port(); }

  ClientResponse Get(std::string_view target, std::string_view headers = "") {
    return HttpClient(port()).Request("GET", target, "", headers);
  }
  ClientResponse Post(std::string_view target, std::string_view body,
                      std::string_view headers = "") {
    return HttpClient(port()).Request("POST", target, body, headers);
  }
  // Only what is Json already, since every string would convert to it.
  template <std::same_as<Json> Body>
  ClientResponse Post(std::string_view target, const Body& body) {
    return Post(target, std::string_view(JsonText(body)));
  }

  // What the fake worker generates after `prompt`, as text.
  std::string Expected(std::string_view prompt, int max_tokens) const {
    std::vector<int32_t> tokens = tokenizer_.Encode(prompt, model::SpecialMatching::kAll);
    std::vector<int32_t> out;
    while (static_cast<int>(out.size()) < max_tokens) {
      out.push_back(testing::FakeWorker::NextToken(options_.worker, tokens));
      if (out.back() == options_.worker.eos) break;
      tokens.push_back(out.back());
    }
    return tokenizer_.Decode(out, /*include_special=*/false);
  }

  size_t Count(std::string_view text) const {
    return tokenizer_.Encode(text, model::SpecialMatching::kAll).size();
  }

  bool IsIdle() const {
    const EngineStats stats = engine_->stats();
    return stats.num_running == 0 && stats.num_waiting == 0 && gate_->running().empty();
  }

 private:
  static model::ChatTemplate MakeTemplate(const std::string& source) {
    if (source.empty()) return model::ChatTemplate::BuiltInChatMl();
    auto parsed = model::ChatTemplate::Parse(source);
    SWITCHYARD_CHECK(parsed.ok());
    return *std::move(parsed);
  }

  HarnessOptions options_;
  model::Tokenizer tokenizer_;
  model::ChatTemplate chat_template_;
  model::ModelSpec spec_;
  ServingMetrics metrics_;
  std::atomic<RequestGate*> gate_pointer_ = nullptr;
  std::unique_ptr<Engine> engine_;
  testing::FakeWorker* worker_ = nullptr;
  std::unique_ptr<RequestGate> gate_;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<HttpSurface> surface_;
};

}  // namespace switchyard::coordinator::http
