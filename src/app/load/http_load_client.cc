#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <sys/socket.h>

#include "app/listen_address.h"
#include "app/load/load_client.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;

absl::Status ToStatus(const beast::error_code& error, std::string_view what) {
  return Unavailable("{}: {}", what, error.message());
}

absl::StatusCode CodeOf(unsigned http_status) {
  switch (http_status) {
    case 400:
      return absl::StatusCode::kInvalidArgument;
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 404:
      return absl::StatusCode::kNotFound;
    case 429:
      return absl::StatusCode::kResourceExhausted;
    case 503:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

// One connection, one request; its lines of `data:` are read as they come.
class Exchange {
 public:
  absl::Status Connect(const ListenAddress& address) {
    beast::error_code error;
    tcp::resolver resolver(context_);
    const auto endpoints = resolver.resolve(address.host, std::to_string(address.port), error);
    if (error) return ToStatus(error, "cannot resolve " + address.host);
    asio::connect(socket_, endpoints, error);
    if (error) return ToStatus(error, "cannot connect to " + address.Text());
    socket_.set_option(tcp::no_delay(true), error);
    return absl::OkStatus();
  }

  // Ends what is being read or written. Threads: any, between Connect() and the end.
  void ShutDown() { ::shutdown(socket_.native_handle(), SHUT_RDWR); }

  absl::Status Send(const http::request<http::string_body>& request) {
    beast::error_code error;
    http::write(socket_, request, error);
    if (error) return ToStatus(error, "sending failed");
    parser_.body_limit(boost::none);
    http::read_header(socket_, buffer_, parser_, error);
    if (error) return ToStatus(error, "no answer");
    return absl::OkStatus();
  }

  unsigned http_status() const { return parser_.get().result_int(); }

  // Reads on; appends to `text`. False at the end of the answer.
  absl::StatusOr<bool> ReadSome(std::string& text) {
    if (parser_.is_done()) return false;
    beast::error_code error;
    char chunk[16384];
    auto& body = parser_.get().body();
    body.data = chunk;
    body.size = sizeof(chunk);
    http::read_some(socket_, buffer_, parser_, error);
    if (error && error != http::error::need_buffer) return ToStatus(error, "reading failed");
    text.append(chunk, sizeof(chunk) - body.size);
    return true;
  }

  absl::StatusOr<std::string> ReadAll() {
    std::string text;
    while (true) {
      SWITCHYARD_ASSIGN_OR_RETURN(const bool more, ReadSome(text));
      if (!more) return text;
    }
  }

 private:
  asio::io_context context_;
  tcp::socket socket_{context_};
  beast::flat_buffer buffer_;
  http::response_parser<http::buffer_body> parser_;
};

// Splits a byte stream into the payloads of its `data:` lines.
class EventLines {
 public:
  template <typename Consume>
  void Push(std::string_view bytes, Consume consume) {
    pending_.append(bytes);
    size_t begin = 0;
    for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      std::string_view line(pending_.data() + begin, end - begin);
      if (line.starts_with("data: ")) consume(line.substr(6));
    }
    pending_.erase(0, begin);
  }

 private:
  std::string pending_;
};

nlohmann::json Parse(std::string_view text) { return nlohmann::json::parse(text, nullptr, false); }

template <typename T>
T ValueAt(const nlohmann::json& json, std::string_view pointer, T otherwise) {
  const nlohmann::json::json_pointer path{std::string(pointer)};
  if (!json.contains(path)) return otherwise;
  const nlohmann::json& value = json.at(path);
  if constexpr (std::is_arithmetic_v<T>) {
    return value.is_number() ? value.get<T>() : otherwise;
  } else {
    return value.is_string() ? value.get<T>() : otherwise;
  }
}

absl::Status ErrorFrom(unsigned http_status, const std::string& body) {
  const std::string text = ValueAt<std::string>(Parse(body), "/error/message", "HTTP status");
  return absl::Status(CodeOf(http_status), fmt::format("{} ({})", text, http_status));
}

http::request<http::string_body> MakeRequest(const ListenAddress& address,
                                             const std::string& api_key, http::verb verb,
                                             const std::string& target, std::string body) {
  http::request<http::string_body> request(verb, target, 11);
  request.set(http::field::host, address.Text());
  request.set(http::field::connection, "close");
  if (!api_key.empty()) request.set(http::field::authorization, "Bearer " + api_key);
  if (!body.empty()) {
    request.set(http::field::content_type, "application/json");
    request.body() = std::move(body);
    request.prepare_payload();
  }
  return request;
}

absl::StatusOr<std::string> Get(const ListenAddress& address, const std::string& path,
                                const std::string& api_key) {
  Exchange exchange;
  SWITCHYARD_RETURN_IF_ERROR(exchange.Connect(address));
  SWITCHYARD_RETURN_IF_ERROR(
      exchange.Send(MakeRequest(address, api_key, http::verb::get, path, "")));
  SWITCHYARD_ASSIGN_OR_RETURN(std::string body, exchange.ReadAll());
  if (exchange.http_status() != 200) return ErrorFrom(exchange.http_status(), body);
  return body;
}

absl::StatusOr<ListenAddress> ParseUrl(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  std::string_view rest = url;
  if (!rest.starts_with(kScheme)) return InvalidArgument("wants http://host:port, got: {}", url);
  rest.remove_prefix(kScheme.size());
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const auto address = ParseListenAddress(rest);
  if (!address.ok()) return InvalidArgument("wants http://host:port, got: {}", url);
  return *address;
}

class HttpLoadClient : public LoadClient {
 public:
  HttpLoadClient(ListenAddress address, std::string api_key)
      : address_(std::move(address)), api_key_(std::move(api_key)) {}

  absl::StatusOr<ServerFacts> Describe() override {
    SWITCHYARD_ASSIGN_OR_RETURN(const std::string body, Get(address_, "/v1/models", api_key_));
    const nlohmann::json json = Parse(body);
    ServerFacts facts;
    facts.model = ValueAt<std::string>(json, "/data/0/id", "");
    facts.digest = ValueAt<std::string>(json, "/data/0/meta/digest", "");
    facts.mode = ValueAt<std::string>(json, "/data/0/meta/mode", "");
    facts.plan_id = ValueAt<std::string>(json, "/data/0/meta/plan_id", "");
    facts.context_tokens = ValueAt<int64_t>(json, "/data/0/meta/n_ctx", 0);
    facts.vocab_size = ValueAt<int32_t>(json, "/data/0/meta/n_vocab", 0);
    if (facts.model.empty() || facts.vocab_size <= 0) {
      return Internal("the server's list of models makes no sense");
    }
    return facts;
  }

  LoadSample Run(const LoadRequest& request) override {
    nlohmann::json json = {{"prompt", request.prompt},
                           {"max_tokens", request.max_tokens},
                           {"temperature", 0},
                           {"ignore_eos", true},
                           {"stream", true},
                           {"return_token_ids", true},
                           {"stream_options", {{"include_usage", true}}}};
    if (!request.cache_salt.empty()) json["cache_salt"] = request.cache_salt;
    LoadSample sample;
    sample.status = Stream(
        MakeRequest(address_, api_key_, http::verb::post, "/v1/completions", json.dump()), sample);
    if (!sample.status.ok() && is_stopped()) sample.status = Cancelled("the load was stopped");
    sample.end_seconds = MonotonicClock::Get().NowSeconds();
    return sample;
  }

  void Stop() override {
    std::lock_guard lock(mutex_);
    is_stopped_ = true;
    for (Exchange* const exchange : running_) exchange->ShutDown();
  }

 private:
  // Lets Stop() find an exchange while it runs.
  class Running {
   public:
    Running(HttpLoadClient& client, Exchange& exchange) : client_(client), exchange_(exchange) {
      std::lock_guard lock(client_.mutex_);
      client_.running_.insert(&exchange_);
      if (client_.is_stopped_) exchange_.ShutDown();
    }
    ~Running() {
      std::lock_guard lock(client_.mutex_);
      client_.running_.erase(&exchange_);
    }

   private:
    HttpLoadClient& client_;
    Exchange& exchange_;
  };

  bool is_stopped() {
    std::lock_guard lock(mutex_);
    return is_stopped_;
  }

  absl::Status Stream(const http::request<http::string_body>& request, LoadSample& sample) {
    const Clock& clock = MonotonicClock::Get();
    sample.start_seconds = clock.NowSeconds();
    Exchange exchange;
    SWITCHYARD_RETURN_IF_ERROR(exchange.Connect(address_));
    const Running running(*this, exchange);
    SWITCHYARD_RETURN_IF_ERROR(exchange.Send(request));
    if (exchange.http_status() != 200) {
      SWITCHYARD_ASSIGN_OR_RETURN(const std::string body, exchange.ReadAll());
      return ErrorFrom(exchange.http_status(), body);
    }
    EventLines lines;
    double last_seconds = 0;
    bool is_done = false;
    absl::Status failure;
    const auto consume = [&](std::string_view data) {
      if (data == "[DONE]") {
        is_done = true;
        return;
      }
      const nlohmann::json event = Parse(data);
      if (event.is_discarded()) {
        failure = Internal("an event is not JSON");
        return;
      }
      if (event.contains("error")) {
        failure = Unavailable("{}", ValueAt<std::string>(event, "/error/message", "error"));
        return;
      }
      const nlohmann::json::json_pointer tokens("/choices/0/token_ids");
      const size_t num_tokens = event.contains(tokens) ? event.at(tokens).size() : 0;
      if (num_tokens > 0) {
        const double now = clock.NowSeconds();
        if (sample.first_token_seconds == 0) {
          sample.first_token_seconds = now;
        } else {
          sample.gap_seconds.push_back(now - last_seconds);
        }
        sample.gap_seconds.insert(sample.gap_seconds.end(), num_tokens - 1, 0.0);
        last_seconds = now;
      }
      if (event.contains("usage") && event["usage"].is_object()) {
        sample.prompt_tokens = ValueAt<int>(event, "/usage/prompt_tokens", 0);
        sample.completion_tokens = ValueAt<int>(event, "/usage/completion_tokens", 0);
        sample.cached_tokens = ValueAt<int>(event, "/usage/prompt_tokens_details/cached_tokens", 0);
      }
      if (event.contains("timings")) {
        sample.prompt_per_second = ValueAt<double>(event, "/timings/prompt_per_second", 0);
      }
    };
    while (true) {
      std::string bytes;
      SWITCHYARD_ASSIGN_OR_RETURN(const bool more, exchange.ReadSome(bytes));
      lines.Push(bytes, consume);
      if (!failure.ok()) return failure;
      if (!more) break;
    }
    if (!is_done) return Unavailable("the stream ended without its last event");
    return absl::OkStatus();
  }

  const ListenAddress address_;
  const std::string api_key_;
  std::mutex mutex_;  // guards what follows
  std::set<Exchange*> running_;
  bool is_stopped_ = false;
};

}  // namespace

absl::StatusOr<std::string> HttpGet(const std::string& url, const std::string& path,
                                    const std::string& api_key) {
  SWITCHYARD_ASSIGN_OR_RETURN(const ListenAddress address, ParseUrl(url));
  return Get(address, path, api_key);
}

absl::StatusOr<std::unique_ptr<LoadClient>> MakeHttpLoadClient(const std::string& url,
                                                               const std::string& api_key) {
  SWITCHYARD_ASSIGN_OR_RETURN(ListenAddress address, ParseUrl(url));
  return std::make_unique<HttpLoadClient>(std::move(address), api_key);
}

}  // namespace switchyard::app
