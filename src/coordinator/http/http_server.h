// An HTTP/1.1 server for programs: keep-alive, streams, limits on everything a client decides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/clock.h"
#include "coordinator/http/http_handler.h"

namespace switchyard::coordinator::http {

struct HttpServerOptions {
  std::string address = "127.0.0.1";  // an IP address, or "localhost"
  uint16_t port = 8080;               // 0 = a free one
  int num_io_threads = 2;
  int num_background_threads = 2;

  size_t max_header_bytes = size_t{16} << 10;
  size_t max_body_bytes = size_t{8} << 20;
  // Of all bodies that are read or not converted yet; what would go over it gets 503. A body of
  // unknown length counts as the longest allowed.
  size_t max_total_body_bytes = size_t{256} << 20;
  int max_connections = 1024;  // more get 503
  double header_seconds = 10;  // from the first byte of a head, or from the connect, to its end
  double body_seconds = 30;
  double idle_seconds = 75;         // between requests
  double write_stall_seconds = 30;  // a client that takes nothing for so long is given up
  double linger_seconds = 2;        // after a response that ends the connection before all was read
  double ping_seconds = 15;         // see HttpStreamHead
  int send_buffer_bytes = 0;        // of the sockets; 0 = the system's choice
  const Clock* clock = &MonotonicClock::Get();  // for HttpRequest::received_seconds
};

// True for addresses that only this machine can reach: 127.0.0.0/8, ::1, "localhost".
bool IsLoopback(std::string_view address);

// Serves HTTP/1.1 and 1.0 without TLS.
//
// A client that leaves while its request is handled is noticed at once (so one that shuts down its
// sending side counts as gone). Requests of one connection are handled one after the other.
//
// Threads: Start() and Stop() from one thread at a time; the rest from any.
class HttpServer {
 public:
  // `handler` and the clock must outlive the server.
  HttpServer(HttpHandler& handler, const HttpServerOptions& options);
  // Stops without patience.
  ~HttpServer();

  // Binds and begins to serve. Once.
  // Errors: kInvalidArgument (address), kUnavailable (cannot bind: in use, not permitted).
  absl::Status Start();

  // Bound port. REQUIRES: Start() was successful.
  uint16_t port() const;

  // Runs `work` on a thread where it may compute for long, but must not wait for other work.
  void RunInBackground(std::function<void()> work);

  // Accepts nothing more, closes idle connections, lets running responses end, and closes what is
  // left after `patience_seconds`. After it no handler is called and no callback runs.
  void Stop(double patience_seconds);

  int num_connections() const;

 private:
  class Core;
  std::shared_ptr<Core> core_;
};

}  // namespace switchyard::coordinator::http
