#include "coordinator/http/http_surface.h"

#include <algorithm>
#include <fmt/format.h>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "coordinator/http/anthropic_api.h"
#include "coordinator/http/native_api.h"
#include "coordinator/http/openai_api.h"
#include "coordinator/request_limits.h"

namespace switchyard::coordinator::http {
namespace {

// An id from the client goes back into a header and into logs: visible ASCII only.
bool IsRequestId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestIdBytes &&
         std::ranges::all_of(id, [](char c) { return c > ' ' && c < 0x7f; });
}

std::string RequestId(const HttpRequest& request) {
  const std::string_view id = request.Header("X-Request-Id");
  return IsRequestId(id) ? std::string(id) : MakeRequestId();
}

ErrorShape ShapeOf(std::string_view path) {
  return path == "/v1/messages" || path.starts_with("/v1/messages/") ? ErrorShape::kAnthropic
                                                                     : ErrorShape::kOpenAi;
}

std::string_view KeyOf(const HttpRequest& request) {
  const std::string_view authorization = request.Header("Authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (authorization.size() > kBearer.size() &&
      EqualIgnoringCase(authorization.substr(0, kBearer.size()), kBearer)) {
    return authorization.substr(kBearer.size());
  }
  return request.Header("X-Api-Key");
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// "a%2Fb" -> "a/b"; what is no escape stays.
std::string DecodePercent(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && HexValue(text[i + 1]) >= 0 &&
        HexValue(text[i + 2]) >= 0) {
      out += static_cast<char>(HexValue(text[i + 1]) * 16 + HexValue(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

class HttpSurface::Impl : public HttpHandler {
 public:
  Impl(const ServedModel& model, RequestGate& gate, ServingMetrics& metrics,
       std::function<EngineStats()> stats, const ApiKeys* keys, const HttpSurfaceOptions& options)
      : options_(options),
        keys_(keys),
        context_{.model = model,
                 .gate = gate,
                 .metrics = metrics,
                 .stats = std::move(stats),
                 .max_buffered_bytes = options.max_buffered_bytes,
                 .version = options.version,
                 .residency = options.residency},
        openai_(context_),
        anthropic_(context_),
        native_(context_),
        server_(*this, options.server) {
    AddNativeRoutes();
    AddModelRoutes();
  }

  void AddRoute(HttpRoute route) { routes_.push_back(std::move(route)); }
  const std::vector<HttpRoute>& routes() const { return routes_; }
  HttpServer& server() { return server_; }
  RequestGate& gate() { return context_.gate; }

  std::optional<HttpResponse> Refuse(const HttpRequest& head) override {
    const HttpRoute* const route = FindRoute(head);
    // An unknown path is no secret, but what there is behind a key is not told without one.
    if ((route == nullptr || route->needs_key) && keys_ != nullptr &&
        !keys_->Accepts(KeyOf(head))) {
      const absl::Status status(absl::StatusCode::kUnauthenticated,
                                "the API key is missing or wrong");
      context_.metrics.OnError(status);
      return Finish(http::ErrorResponse(ToApiError(status), ShapeOf(head.path())), head);
    }
    if (route != nullptr) return std::nullopt;
    return Finish(NoRoute(head), head);
  }

  // Token ids take several times the bytes of the text that they stand for: what /tokenize gave
  // must fit /detokenize.
  size_t MaxBodyBytes(const HttpRequest& head, size_t usual) override {
    return head.path() == "/detokenize" ? 4 * usual : usual;
  }

  void Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) override {
    const HttpRoute& route = *FindRoute(request);  // Refuse() has seen to it
    ApiCall call{.request = std::move(request), .responder = std::move(responder)};
    call.request_id = RequestId(call.request);
    call.shape = ShapeOf(call.request.path());
    if (!route.is_long) {
      route.handle(std::move(call));
      return;
    }
    server_.RunInBackground([&route, held = std::make_shared<ApiCall>(std::move(call))] {
      route.handle(std::move(*held));
    });
  }

  HttpResponse ErrorResponse(int status, std::string_view message,
                             const HttpRequest* head) override {
    const ErrorShape shape = head == nullptr ? ErrorShape::kOpenAi : ShapeOf(head->path());
    HttpResponse response = Refusal(status, message, shape);
    return head == nullptr ? response : Finish(std::move(response), *head);
  }

 private:
  // An error before any API has seen the request.
  HttpResponse Refusal(int status, std::string_view message, ErrorShape shape) const {
    context_.metrics.OnError(absl::Status(CodeOf(status), ToAbsl(message)));
    return http::ErrorResponse(HttpError(status, message), shape);
  }

  static HttpResponse Finish(HttpResponse response, const HttpRequest& head) {
    response.headers.push_back({"X-Request-Id", RequestId(head)});
    return response;
  }

  static bool Matches(const HttpRoute& route, std::string_view path) {
    if (route.path.ends_with('/') && route.path.size() > 1) {
      return path.size() > route.path.size() && path.starts_with(route.path);
    }
    return path == route.path;
  }

  const HttpRoute* FindRoute(const HttpRequest& head) const {
    for (const HttpRoute& route : routes_) {
      if (route.method == head.method && Matches(route, head.path())) return &route;
    }
    return nullptr;
  }

  // 405 where another method would do, else 404.
  HttpResponse NoRoute(const HttpRequest& head) const {
    std::string allowed;
    for (const HttpRoute& route : routes_) {
      if (!Matches(route, head.path())) continue;
      if (!allowed.empty()) allowed += ", ";
      allowed += route.method == "GET" ? "GET, HEAD" : route.method;
    }
    const ErrorShape shape = ShapeOf(head.path());
    if (allowed.empty()) return Refusal(404, "there is nothing at this path", shape);
    HttpResponse response =
        Refusal(405, fmt::format("this path takes other methods: {}", allowed), shape);
    response.headers.push_back({"Allow", allowed});
    return response;
  }

  using Native = void (NativeApi::*)(ApiCall) const;

  void AddNative(std::string method, std::string path, Native function, bool needs_key,
                 bool is_long = false) {
    AddRoute({std::move(method), std::move(path), needs_key, is_long,
              [this, function](ApiCall call) { (native_.*function)(std::move(call)); }});
  }

  void AddNativeRoutes() {
    AddNative("GET", "/livez", &NativeApi::Live, /*needs_key=*/false);
    for (const char* const path : {"/health", "/healthz", "/readyz"}) {
      AddNative("GET", path, &NativeApi::Ready, /*needs_key=*/false);
    }
    AddNative("POST", "/tokenize", &NativeApi::Tokenize, true, /*is_long=*/true);
    AddNative("POST", "/detokenize", &NativeApi::Detokenize, true, /*is_long=*/true);
    AddNative("POST", "/apply-template", &NativeApi::ApplyTemplate, true, /*is_long=*/true);
    AddNative("GET", "/props", &NativeApi::Props, true);
    if (options_.has_slots) AddNative("GET", "/slots", &NativeApi::Slots, true);
    AddNative("GET", "/metrics", &NativeApi::Metrics, true);
    AddNative("GET", "/api/residency", &NativeApi::Residency, true, /*is_long=*/true);
    AddNative("GET", "/openapi.json", &NativeApi::OpenApi, true);
  }

  void AddModelRoutes() {
    AddRoute({"GET", "/v1/models", true, false,
              [this](ApiCall call) { openai_.ListModels(std::move(call)); }});
    AddRoute({"GET", "/v1/models/", true, false, [this](ApiCall call) {
                constexpr std::string_view kPrefix = "/v1/models/";
                const std::string name = DecodePercent(call.request.path().substr(kPrefix.size()));
                openai_.GetModel(std::move(call), name);
              }});
    AddRoute({"POST", "/v1/chat/completions", true, true,
              [this](ApiCall call) { openai_.ChatCompletions(std::move(call)); }});
    AddRoute({"POST", "/v1/completions", true, true,
              [this](ApiCall call) { openai_.Completions(std::move(call)); }});
    AddRoute({"POST", "/v1/messages", true, true,
              [this](ApiCall call) { anthropic_.Messages(std::move(call)); }});
    AddRoute({"POST", "/v1/messages/count_tokens", true, true,
              [this](ApiCall call) { anthropic_.CountTokens(std::move(call)); }});
  }

  const HttpSurfaceOptions options_;
  const ApiKeys* const keys_;
  const ApiContext context_;
  const OpenAiApi openai_;
  const AnthropicApi anthropic_;
  const NativeApi native_;
  std::vector<HttpRoute> routes_;
  HttpServer server_;  // last: its threads use all of the above
};

HttpSurface::HttpSurface(const ServedModel& model, RequestGate& gate, ServingMetrics& metrics,
                         std::function<EngineStats()> stats, const ApiKeys* keys,
                         const HttpSurfaceOptions& options)
    : impl_(std::make_unique<Impl>(model, gate, metrics, std::move(stats), keys, options)) {}

HttpSurface::~HttpSurface() = default;

void HttpSurface::AddRoute(HttpRoute route) { impl_->AddRoute(std::move(route)); }

std::vector<std::string> HttpSurface::Routes() const {
  std::vector<std::string> routes;
  for (const HttpRoute& route : impl_->routes()) {
    const bool is_prefix = route.path.ends_with('/');
    routes.push_back(route.method + " " + route.path + (is_prefix ? "{id}" : ""));
  }
  return routes;
}

void HttpSurface::RunInBackground(std::function<void()> work) {
  impl_->server().RunInBackground(std::move(work));
}

absl::Status HttpSurface::Start() { return impl_->server().Start(); }

uint16_t HttpSurface::port() const { return impl_->server().port(); }

void HttpSurface::BeginDrain() { impl_->gate().BeginDrain(); }

void HttpSurface::Stop(double patience_seconds) { impl_->server().Stop(patience_seconds); }

int HttpSurface::num_connections() const { return impl_->server().num_connections(); }

}  // namespace switchyard::coordinator::http
