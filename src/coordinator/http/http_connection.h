// One connection of the HTTP server: reads requests, writes responses, keeps the time limits.
// With http_server.cc and http_connection.cc the only place that sees Boost.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/http/http_handler.h"
#include "coordinator/http/http_server.h"

namespace switchyard::coordinator::http {

class HttpConnection;

// What connections know of their server.
class HttpConnectionOwner {
 public:
  virtual ~HttpConnectionOwner() = default;
  virtual const HttpServerOptions& options() const = 0;
  virtual HttpHandler& handler() = 0;
  // Room for a body of `num_bytes`, given back when the result dies; null if there is none.
  // Threads: any.
  virtual std::shared_ptr<const void> ReserveBody(size_t num_bytes) = 0;
  // The connection is closed and forgets its owner's handler. Threads: any.
  virtual void Remove(HttpConnection* connection) = 0;
};

// Life: Start() -> for each request: read, handle, answer -> closed. All work runs on the socket's
// strand. The owner holds it until Remove(); afterwards only asynchronous operations that are still
// under way do.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  // `socket` has a strand as its executor. `is_refused`: answers 503 and closes.
  HttpConnection(Socket socket, std::shared_ptr<HttpConnectionOwner> owner, bool is_refused);

  bool is_refused() const { return is_refused_; }

  // Threads: any.
  void Start();
  void CloseWhenIdle();
  void CloseNow();

 private:
  class Responder;
  using ErrorCode = boost::system::error_code;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  enum class State {
    kIdle,         // waits for the first byte of a request
    kReadingHead,  //
    kReadingBody,  //
    kHandling,     // the handler has it, or its response is being written
    kLingering,    // all is written; what the client still sends is thrown away
    kClosed,
  };

  // A response in the making.
  struct Exchange {
    uint64_t number = 0;
    bool is_head_only = false;  // HEAD
    bool is_http_1_0 = false;
    bool is_answered = false;  // Send(), Finish() or Abort() came
    bool is_aborted = false;
    std::optional<HttpStreamHead> stream{};
    bool has_sent = false;
    HttpResponder::Callbacks callbacks{};
  };

  // Runs `function(connection)` on the strand.
  template <typename Function>
  void OnStrand(Function function);

  // ---- reading
  void Watch();
  void OnWatched(ErrorCode error, size_t num_bytes);
  void ReadHead();
  void OnHead(ErrorCode error);
  void OnWholeHead();
  bool CheckHead(const HttpRequest& head);
  void SendContinue();
  void ReadBody();
  void OnBody(ErrorCode error);
  void OnReadError(ErrorCode error, const HttpRequest* head);
  void Handle();
  HttpRequest TakeHead();

  // ---- answering; each does nothing unless `exchange` is the present one
  void SetCallbacks(uint64_t exchange, HttpResponder::Callbacks callbacks);
  void Send(uint64_t exchange, HttpResponse response);
  void StartStream(uint64_t exchange, HttpStreamHead head);
  void WriteStream(uint64_t exchange, std::string_view data);
  void EndStream(uint64_t exchange, bool is_complete);
  void OnResponderGone(uint64_t exchange);

  bool is_current(uint64_t exchange) const;
  std::string HeadText(int status, std::string_view content_type,
                       const std::vector<HttpHeader>& headers, std::optional<size_t> body_bytes);
  void RefuseAndClose(HttpResponse response);
  void ArmPing();
  void Flush();
  void WriteSome();
  void OnWritten();
  void EndExchange();

  // ---- the end
  void OnPeerClosed();
  void Linger();
  void Close();

  void SetDeadline(double seconds);
  void ClearDeadline();
  void OnDeadline();

  Socket socket_;
  std::shared_ptr<HttpConnectionOwner> owner_;
  const bool is_refused_;
  State state_ = State::kIdle;
  bool keep_alive_ = true;
  bool is_peer_closed_ = false;
  bool closes_when_idle_ = false;

  boost::beast::flat_buffer buffer_;  // read and not yet consumed
  bool is_watching_ = false;          // a read for the next byte is under way
  bool has_timed_out_ = false;        // the read under way was cancelled by the deadline
  std::optional<Parser> parser_;
  HttpRequest request_;
  size_t body_limit_ = 0;  // of the present request

  Exchange exchange_;
  std::string pending_;    // to be written next
  std::string in_flight_;  // being written
  size_t written_bytes_ = 0;
  bool is_writing_ = false;

  boost::asio::steady_timer deadline_;
  uint64_t deadline_number_ = 0;  // a timer that was set again may have fired already
  boost::asio::steady_timer ping_;
  std::chrono::steady_clock::time_point last_write_{};
};

}  // namespace switchyard::coordinator::http
