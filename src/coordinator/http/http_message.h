// HTTP requests and responses as handlers see them, whole and free of any library's types.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::coordinator::http {

struct HttpHeader {
  std::string name;
  std::string value;
};

// A request with its whole body.
struct HttpRequest {
  std::string method;  // "GET" also for HEAD, which differs for the connection only
  std::string target;  // as sent: path and query
  std::vector<HttpHeader> headers;
  std::string body{};
  // The body's share of HttpServerOptions::max_total_body_bytes, given back when it dies: keep it
  // as long as the body, and no longer.
  std::shared_ptr<const void> body_share{};
  double received_seconds = 0;  // when its last byte was here, by the server's clock

  // The part of `target` before the query.
  std::string_view path() const;
  // Value of the first header of this name, whatever its case; "" if there is none.
  std::string_view Header(std::string_view name) const;
};

// A response with its whole body. Content-Length, Connection and Date are the connection's.
struct HttpResponse {
  int status = 200;
  std::string body{};
  std::string content_type = "application/json; charset=utf-8";
  std::vector<HttpHeader> headers{};
};

// How a response in pieces begins.
struct HttpStreamHead {
  std::string content_type = "text/event-stream; charset=utf-8";
  std::vector<HttpHeader> headers{};
  // Sent whenever nothing else was for HttpServerOptions::ping_seconds: a comment of an event
  // stream by default.
  std::string ping = ": ping\n\n";
};

// "Not Found" for 404; "Unknown" for what has no name.
std::string_view StatusText(int status);

// Equal but for the case of ASCII letters, as names of headers are.
bool EqualIgnoringCase(std::string_view a, std::string_view b);

}  // namespace switchyard::coordinator::http
