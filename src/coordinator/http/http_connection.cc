#include "coordinator/http/http_connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <chrono>
#include <ctime>
#include <fmt/format.h>
#include <utility>

namespace switchyard::coordinator::http {
namespace {

namespace asio = boost::asio;
namespace beast_http = boost::beast::http;

// One read for the next request, or of what comes while another is handled. What a client sends
// ahead beyond the size of one head stays in its socket.
constexpr size_t kWatchBytes = 4096;

// Beast reads a body in pieces of up to 64 KiB; the buffer also holds what was sent ahead.
constexpr size_t kBodyReadBytes = size_t{64} << 10;

std::chrono::steady_clock::duration Duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

std::string HttpDate() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  return fmt::format("{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT", kDays[parts.tm_wday],
                     parts.tm_mday, kMonths[parts.tm_mon], parts.tm_year + 1900, parts.tm_hour,
                     parts.tm_min, parts.tm_sec);
}

template <typename Text>
std::string ToString(const Text& text) {
  return std::string(text.data(), text.size());
}

}  // namespace

// Passes calls on to the connection while it lives. Holds it weakly: a handler may keep a responder
// for longer than the server lives.
class HttpConnection::Responder final : public HttpResponder {
 public:
  Responder(std::weak_ptr<HttpConnection> connection, uint64_t exchange)
      : connection_(std::move(connection)), exchange_(exchange) {}

  // Queued even on the strand: what other threads asked for just before must come first.
  ~Responder() override {
    const auto connection = connection_.lock();
    if (connection == nullptr) return;
    asio::post(connection->socket_.get_executor(), [weak = connection_, exchange = exchange_] {
      if (const auto alive = weak.lock()) alive->OnResponderGone(exchange);
    });
  }

  void SetCallbacks(Callbacks callbacks) override {
    OnStrand([exchange = exchange_, callbacks = std::move(callbacks)](HttpConnection& c) mutable {
      c.SetCallbacks(exchange, std::move(callbacks));
    });
  }
  void Post(std::function<void()> work) override {
    const auto connection = connection_.lock();
    if (connection == nullptr) return;
    asio::post(connection->socket_.get_executor(), [weak = connection_, work = std::move(work)] {
      if (weak.lock() != nullptr) work();
    });
  }
  void Send(HttpResponse response) override {
    OnStrand([exchange = exchange_, response = std::move(response)](HttpConnection& c) mutable {
      c.Send(exchange, std::move(response));
    });
  }
  void StartStream(HttpStreamHead head) override {
    OnStrand([exchange = exchange_, head = std::move(head)](HttpConnection& c) mutable {
      c.StartStream(exchange, std::move(head));
    });
  }
  void Write(std::string data) override {
    OnStrand([exchange = exchange_, data = std::move(data)](HttpConnection& c) {
      c.WriteStream(exchange, data);
    });
  }
  void Finish() override {
    OnStrand([exchange = exchange_](HttpConnection& c) { c.EndStream(exchange, true); });
  }
  void Abort() override {
    OnStrand([exchange = exchange_](HttpConnection& c) { c.EndStream(exchange, false); });
  }

  bool is_writable() const override {
    const auto connection = connection_.lock();
    return connection != nullptr && connection->is_current(exchange_) && !connection->is_writing_;
  }
  bool has_sent() const override {
    const auto connection = connection_.lock();
    return connection != nullptr && connection->is_current(exchange_) &&
           connection->exchange_.has_sent;
  }

 private:
  // At once if this is the strand already. The queued function does not keep the connection alive:
  // nothing that waits in a stopped server may hold it.
  template <typename Function>
  void OnStrand(Function function) {
    const auto connection = connection_.lock();
    if (connection == nullptr) return;
    asio::dispatch(connection->socket_.get_executor(),
                   [weak = connection_, function = std::move(function)]() mutable {
                     if (const auto alive = weak.lock()) function(*alive);
                   });
  }

  const std::weak_ptr<HttpConnection> connection_;
  const uint64_t exchange_;
};

HttpConnection::HttpConnection(Socket socket, std::shared_ptr<HttpConnectionOwner> owner,
                               bool is_refused)
    : socket_(std::move(socket)),
      owner_(std::move(owner)),
      is_refused_(is_refused),
      buffer_(owner_->options().max_header_bytes + kWatchBytes + kBodyReadBytes),
      deadline_(socket_.get_executor()),
      ping_(socket_.get_executor()) {}

template <typename Function>
void HttpConnection::OnStrand(Function function) {
  asio::dispatch(socket_.get_executor(),
                 [self = shared_from_this(), function = std::move(function)] { function(*self); });
}

void HttpConnection::Start() {
  OnStrand([](HttpConnection& c) {
    if (c.state_ == State::kClosed) return;
    ErrorCode ignored;
    c.socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
    if (const int bytes = c.owner_->options().send_buffer_bytes; bytes > 0) {
      c.socket_.set_option(asio::socket_base::send_buffer_size(bytes), ignored);
    }
    if (c.is_refused_) {
      HttpResponse response =
          c.owner_->handler().ErrorResponse(503, "too many connections", nullptr);
      response.headers.push_back({"Retry-After", "1"});
      c.RefuseAndClose(std::move(response));
      return;
    }
    c.SetDeadline(c.owner_->options().header_seconds);
    c.Watch();
  });
}

void HttpConnection::CloseWhenIdle() {
  OnStrand([](HttpConnection& c) {
    c.closes_when_idle_ = true;
    c.keep_alive_ = false;
    // A request of which bytes have come is still answered.
    if (c.state_ == State::kIdle && c.buffer_.size() == 0) c.Close();
  });
}

void HttpConnection::CloseNow() {
  OnStrand([](HttpConnection& c) { c.Close(); });
}

// ---- reading -----------------------------------------------------------------------------------

// Waits for bytes: of the next request, or, while one is handled, of those sent ahead. The end of
// the connection is noticed by the same read.
void HttpConnection::Watch() {
  if (is_watching_ || is_peer_closed_ || state_ == State::kClosed) return;
  is_watching_ = true;
  const auto on_read = [self = shared_from_this()](ErrorCode error, size_t num_bytes) {
    self->OnWatched(error, num_bytes);
  };
  if (buffer_.size() >= owner_->options().max_header_bytes) {
    // Enough was sent ahead. A reset is still noticed.
    socket_.async_wait(asio::socket_base::wait_error,
                       [on_read](ErrorCode error) { on_read(error, 0); });
    return;
  }
  socket_.async_read_some(buffer_.prepare(kWatchBytes), on_read);
}

void HttpConnection::OnWatched(ErrorCode error, size_t num_bytes) {
  is_watching_ = false;
  if (state_ == State::kClosed) return;
  buffer_.commit(num_bytes);
  if (error == asio::error::operation_aborted) {
    // EndExchange() wants the buffer.
    if (state_ == State::kIdle) ReadHead();
    return;
  }
  if (!error && num_bytes == 0) error = asio::error::connection_reset;  // from wait_error
  if (error) {
    OnPeerClosed();
    if (error != asio::error::eof) Close();
    return;
  }
  switch (state_) {
    case State::kIdle:
      ReadHead();
      return;
    case State::kLingering:
      buffer_.clear();
      Watch();
      return;
    default:
      Watch();
  }
}

void HttpConnection::ReadHead() {
  const HttpServerOptions& options = owner_->options();
  state_ = State::kReadingHead;
  has_timed_out_ = false;
  request_ = HttpRequest();
  exchange_ = Exchange{.number = exchange_.number + 1};
  SetDeadline(options.header_seconds);
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(options.max_header_bytes));
  parser_->body_limit(boost::none);  // OnWholeHead() sets it
  beast_http::async_read_header(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](ErrorCode error, size_t) { self->OnHead(error); });
}

void HttpConnection::OnHead(ErrorCode error) {
  if (state_ == State::kClosed) return;
  if (error) {
    OnReadError(error, nullptr);
    return;
  }
  OnWholeHead();
}

HttpRequest HttpConnection::TakeHead() {
  const auto& message = parser_->get();
  HttpRequest head;
  head.method = ToString(message.method_string());
  head.target = ToString(message.target());
  for (const auto& field : message) {
    head.headers.push_back({ToString(field.name_string()), ToString(field.value())});
  }
  return head;
}

// Returns false and answers if the head asks for what this server does not do.
bool HttpConnection::CheckHead(const HttpRequest& head) {
  const auto refuse = [&](int status, std::string_view message) {
    RefuseAndClose(owner_->handler().ErrorResponse(status, message, &head));
    return false;
  };
  const bool is_http_1_0 = parser_->get().version() == 10;
  if (!is_http_1_0 && head.Header("Host").empty()) return refuse(400, "the Host header is missing");
  const std::string_view coding = head.Header("Transfer-Encoding");
  if (!coding.empty()) {
    if (is_http_1_0) return refuse(400, "HTTP/1.0 has no Transfer-Encoding");
    if (!EqualIgnoringCase(coding, "chunked")) {
      return refuse(501, "only the transfer coding chunked is supported");
    }
  }
  const std::string_view content = head.Header("Content-Encoding");
  if (!content.empty() && !EqualIgnoringCase(content, "identity")) {
    return refuse(415, "compressed bodies are not supported");
  }
  const std::string_view expectation = head.Header("Expect");
  if (!expectation.empty() && !EqualIgnoringCase(expectation, "100-continue")) {
    return refuse(417, "only the expectation 100-continue is supported");
  }
  return true;
}

void HttpConnection::OnWholeHead() {
  request_ = TakeHead();
  keep_alive_ = parser_->keep_alive() && !closes_when_idle_;
  exchange_.is_head_only = request_.method == "HEAD";
  exchange_.is_http_1_0 = parser_->get().version() == 10;
  if (exchange_.is_head_only) request_.method = "GET";
  if (!CheckHead(request_)) return;
  if (auto refusal = owner_->handler().Refuse(request_)) {
    if (!parser_->is_done()) {
      // The body is not read, so no further request can be found behind it.
      RefuseAndClose(*std::move(refusal));
      return;
    }
    state_ = State::kHandling;
    ClearDeadline();
    Watch();
    Send(exchange_.number, *std::move(refusal));
    return;
  }
  if (parser_->is_done()) {
    Handle();
    return;
  }
  body_limit_ = owner_->handler().MaxBodyBytes(request_, owner_->options().max_body_bytes);
  if (parser_->content_length().value_or(0) > body_limit_) {
    OnReadError(beast_http::error::body_limit, &request_);
    return;
  }
  request_.body_share = owner_->ReserveBody(parser_->content_length().value_or(body_limit_));
  if (request_.body_share == nullptr) {
    HttpResponse response = owner_->handler().ErrorResponse(
        503, "the server holds too many request bodies at the moment", &request_);
    response.headers.push_back({"Retry-After", "1"});
    RefuseAndClose(std::move(response));
    return;
  }
  parser_->body_limit(body_limit_);
  state_ = State::kReadingBody;
  SetDeadline(owner_->options().body_seconds);
  const bool is_awaited = !request_.Header("Expect").empty() && !exchange_.is_http_1_0;
  if (is_awaited) {
    SendContinue();
  } else {
    ReadBody();
  }
}

void HttpConnection::SendContinue() {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(kContinue.data(), kContinue.size()),
                    [self = shared_from_this()](ErrorCode error, size_t) {
                      if (self->state_ == State::kClosed) return;
                      if (error) {
                        self->OnReadError(error, &self->request_);
                      } else {
                        self->ReadBody();
                      }
                    });
}

void HttpConnection::ReadBody() {
  beast_http::async_read(
      socket_, buffer_, *parser_,
      [self = shared_from_this()](ErrorCode error, size_t) { self->OnBody(error); });
}

void HttpConnection::OnBody(ErrorCode error) {
  if (state_ == State::kClosed) return;
  if (error) {
    OnReadError(error, &request_);
    return;
  }
  request_.body = std::move(parser_->get().body());
  Handle();
}

void HttpConnection::OnReadError(ErrorCode error, const HttpRequest* head) {
  HttpHandler& handler = owner_->handler();
  const HttpServerOptions& options = owner_->options();
  if (has_timed_out_) {
    RefuseAndClose(handler.ErrorResponse(408, "the request did not arrive in time", head));
  } else if (error == beast_http::error::header_limit ||
             error == beast_http::error::buffer_overflow) {
    RefuseAndClose(handler.ErrorResponse(
        431, fmt::format("the head is too long, limit: {} bytes", options.max_header_bytes), head));
  } else if (error == beast_http::error::body_limit) {
    RefuseAndClose(handler.ErrorResponse(
        413, fmt::format("the body is too long, limit: {} bytes", body_limit_), head));
  } else if (error.category() == ErrorCode(beast_http::error::bad_method).category() &&
             error != beast_http::error::end_of_stream &&
             error != beast_http::error::partial_message) {
    RefuseAndClose(
        handler.ErrorResponse(400, fmt::format("malformed HTTP: {}", error.message()), head));
  } else {
    Close();  // the client has left
  }
}

void HttpConnection::Handle() {
  parser_.reset();
  request_.received_seconds = owner_->options().clock->NowSeconds();
  state_ = State::kHandling;
  ClearDeadline();
  Watch();
  owner_->handler().Handle(std::exchange(request_, HttpRequest()),
                           std::make_shared<Responder>(weak_from_this(), exchange_.number));
}

// ---- answering ---------------------------------------------------------------------------------

bool HttpConnection::is_current(uint64_t exchange) const {
  return state_ == State::kHandling && exchange == exchange_.number && !exchange_.is_answered;
}

void HttpConnection::SetCallbacks(uint64_t exchange, HttpResponder::Callbacks callbacks) {
  if (exchange != exchange_.number || exchange_.is_answered) return;
  const bool is_gone = is_peer_closed_ || state_ != State::kHandling;
  if (is_gone) {
    if (callbacks.on_closed) callbacks.on_closed();
    return;
  }
  exchange_.callbacks = std::move(callbacks);
}

std::string HttpConnection::HeadText(int status, std::string_view content_type,
                                     const std::vector<HttpHeader>& headers,
                                     std::optional<size_t> body_bytes) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\nContent-Type: {}\r\n", status,
                                 StatusText(status), HttpDate(), content_type);
  for (const HttpHeader& header : headers) {
    head += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  if (body_bytes.has_value()) {
    head += fmt::format("Content-Length: {}\r\n", *body_bytes);
  } else if (exchange_.is_http_1_0) {
    keep_alive_ = false;  // the end of the connection is the end of the body
  } else {
    head += "Transfer-Encoding: chunked\r\n";
  }
  if (!keep_alive_) {
    head += "Connection: close\r\n";
  } else if (exchange_.is_http_1_0) {
    head += "Connection: keep-alive\r\n";
  }
  head += "\r\n";
  return head;
}

void HttpConnection::Send(uint64_t exchange, HttpResponse response) {
  if (!is_current(exchange) || exchange_.has_sent) return;
  exchange_.is_answered = true;
  exchange_.stream.reset();
  exchange_.callbacks = {};
  ping_.cancel();
  pending_ =
      HeadText(response.status, response.content_type, response.headers, response.body.size());
  if (!exchange_.is_head_only) pending_ += response.body;
  Flush();
}

// For errors after which the rest of what the client sends means nothing.
void HttpConnection::RefuseAndClose(HttpResponse response) {
  state_ = State::kHandling;
  ClearDeadline();
  parser_.reset();
  keep_alive_ = false;
  Send(exchange_.number, std::move(response));
}

void HttpConnection::StartStream(uint64_t exchange, HttpStreamHead head) {
  if (!is_current(exchange) || exchange_.stream.has_value()) return;
  exchange_.stream = std::move(head);
  last_write_ = std::chrono::steady_clock::now();
  ArmPing();
}

void HttpConnection::ArmPing() {
  ping_.expires_at(last_write_ + Duration(owner_->options().ping_seconds));
  ping_.async_wait([self = shared_from_this(), exchange = exchange_.number](ErrorCode error) {
    if (error || !self->is_current(exchange)) return;
    const auto due = self->last_write_ + Duration(self->owner_->options().ping_seconds);
    if (!self->is_writing_ && std::chrono::steady_clock::now() >= due) {
      self->WriteStream(exchange, self->exchange_.stream->ping);
    } else if (self->is_writing_) {
      self->last_write_ = std::chrono::steady_clock::now();
    }
    self->ArmPing();
  });
}

void HttpConnection::WriteStream(uint64_t exchange, std::string_view data) {
  if (!is_current(exchange) || !exchange_.stream.has_value() || data.empty()) return;
  if (!exchange_.has_sent) {
    exchange_.has_sent = true;
    pending_ += HeadText(200, exchange_.stream->content_type, exchange_.stream->headers, {});
  }
  if (exchange_.is_http_1_0) {
    pending_ += data;
  } else {
    pending_ += fmt::format("{:x}\r\n", data.size());
    pending_ += data;
    pending_ += "\r\n";
  }
  last_write_ = std::chrono::steady_clock::now();
  Flush();
}

void HttpConnection::EndStream(uint64_t exchange, bool is_complete) {
  if (!is_current(exchange) || !exchange_.stream.has_value()) return;
  if (!exchange_.has_sent) {
    exchange_.has_sent = true;
    pending_ += HeadText(200, exchange_.stream->content_type, exchange_.stream->headers, {});
  }
  exchange_.is_answered = true;
  exchange_.is_aborted = !is_complete;
  exchange_.callbacks = {};
  ping_.cancel();
  if (is_complete && !exchange_.is_http_1_0) pending_ += "0\r\n\r\n";
  Flush();
}

void HttpConnection::OnResponderGone(uint64_t exchange) {
  if (!is_current(exchange)) return;
  if (is_peer_closed_) {
    Close();
  } else if (exchange_.has_sent) {
    EndStream(exchange, /*is_complete=*/false);
  } else {
    Send(exchange, owner_->handler().ErrorResponse(500, "the request was not answered", nullptr));
  }
}

void HttpConnection::Flush() {
  if (is_writing_ || state_ == State::kClosed) return;
  if (pending_.empty()) {
    OnWritten();
    return;
  }
  in_flight_ = std::exchange(pending_, std::string());
  written_bytes_ = 0;
  is_writing_ = true;
  WriteSome();
}

void HttpConnection::WriteSome() {
  SetDeadline(owner_->options().write_stall_seconds);
  socket_.async_write_some(
      asio::buffer(in_flight_.data() + written_bytes_, in_flight_.size() - written_bytes_),
      [self = shared_from_this()](ErrorCode error, size_t num_bytes) {
        if (self->state_ == State::kClosed) return;
        if (error) {
          self->Close();
          return;
        }
        self->written_bytes_ += num_bytes;
        if (self->written_bytes_ < self->in_flight_.size()) {
          self->WriteSome();
          return;
        }
        self->is_writing_ = false;
        self->ClearDeadline();
        self->OnWritten();
      });
}

void HttpConnection::OnWritten() {
  if (!pending_.empty()) {
    Flush();
  } else if (exchange_.is_answered) {
    EndExchange();
  } else if (const auto on_writable = exchange_.callbacks.on_writable) {
    on_writable();
  }
}

void HttpConnection::EndExchange() {
  if (exchange_.is_aborted || is_peer_closed_) {
    Close();
    return;
  }
  if (!keep_alive_ || closes_when_idle_) {
    Linger();
    return;
  }
  state_ = State::kIdle;
  in_flight_ = std::string();
  if (buffer_.size() == 0) {
    SetDeadline(owner_->options().idle_seconds);
    Watch();
  } else if (is_watching_) {
    ErrorCode ignored;
    socket_.cancel(ignored);  // OnWatched() reads the next head
  } else {
    ReadHead();
  }
}

// ---- the end -----------------------------------------------------------------------------------

// The client sends nothing more. What it asked last may still be answered, if the handler cares.
void HttpConnection::OnPeerClosed() {
  is_peer_closed_ = true;
  keep_alive_ = false;
  if (state_ != State::kHandling) {
    Close();
    return;
  }
  const auto callbacks = std::exchange(exchange_.callbacks, HttpResponder::Callbacks());
  if (callbacks.on_closed) callbacks.on_closed();
}

// Closing a socket while bytes that nobody read wait in it resets the connection, and the client
// may lose the response. So what still comes is read for a while.
void HttpConnection::Linger() {
  state_ = State::kLingering;
  ErrorCode error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error) {
    Close();
    return;
  }
  SetDeadline(owner_->options().linger_seconds);
  buffer_.clear();
  Watch();
}

void HttpConnection::Close() {
  if (state_ == State::kClosed) return;
  const auto callbacks = std::exchange(exchange_.callbacks, HttpResponder::Callbacks());
  state_ = State::kClosed;
  deadline_.cancel();
  ping_.cancel();
  ErrorCode ignored;
  socket_.close(ignored);
  if (callbacks.on_closed) callbacks.on_closed();
  owner_->Remove(this);
}

void HttpConnection::SetDeadline(double seconds) {
  const uint64_t number = ++deadline_number_;
  deadline_.expires_after(Duration(seconds));
  deadline_.async_wait([self = shared_from_this(), number](ErrorCode error) {
    if (!error && number == self->deadline_number_) self->OnDeadline();
  });
}

void HttpConnection::ClearDeadline() {
  ++deadline_number_;
  deadline_.cancel();
}

void HttpConnection::OnDeadline() {
  if (state_ == State::kReadingHead || state_ == State::kReadingBody) {
    has_timed_out_ = true;
    ErrorCode ignored;
    socket_.cancel(ignored);
    return;
  }
  Close();
}

}  // namespace switchyard::coordinator::http
