// What the HTTP server and those who answer requests know of each other.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/http/http_message.h"

namespace switchyard::coordinator::http {

// Answers one request: with Send(), or with StartStream(), any number of Write() and Finish() or
// Abort(). Destroying it without an answer is a fault of ours: the client gets 500, or the stream
// breaks off.
//
// Every connection has a strand, on which its callbacks run, one after the other.
//
// Threads: any, also after the connection or the server is gone; then calls do nothing. Accessors
// on the strand only.
class HttpResponder {
 public:
  struct Callbacks {
    // A stream can take more: what was written is with the system.
    std::function<void()> on_writable{};
    // The client has left, or the connection broke: nobody waits for the answer. At most once; at
    // once if it has happened already. Not after the end of the answer.
    std::function<void()> on_closed{};
  };

  virtual ~HttpResponder() = default;

  // Both are dropped when the exchange ends and when on_closed was called.
  virtual void SetCallbacks(Callbacks callbacks) = 0;

  // Runs `work` on the strand, never within this call. Not at all if the connection is gone.
  virtual void Post(std::function<void()> work) = 0;

  // Answers. Also instead of a stream that was started and has sent nothing yet.
  virtual void Send(HttpResponse response) = 0;

  // Makes the answer a stream of status 200. Its head goes out with the first Write(), or when the
  // first ping is due.
  virtual void StartStream(HttpStreamHead head) = 0;
  // REQUIRES: StartStream() came before.
  virtual void Write(std::string data) = 0;
  // Ends the stream properly.
  virtual void Finish() = 0;
  // Breaks the stream off after what was written: the client sees that it is not complete.
  virtual void Abort() = 0;

  // Nothing is on its way. Writing regardless is allowed, but then memory grows.
  virtual bool is_writable() const = 0;
  // Bytes of a stream are out, so that Send() is no longer possible.
  virtual bool has_sent() const = 0;
};

// Answers requests.
//
// Threads: all methods are called on IO threads, at the same time for different connections, and
// must not block.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // Looks at a request before its body is read; a response refuses it.
  virtual std::optional<HttpResponse> Refuse(const HttpRequest& head) = 0;

  // Bytes that the body may have; `usual` is HttpServerOptions::max_body_bytes.
  virtual size_t MaxBodyBytes(const HttpRequest& head, size_t usual) {
    (void)head;
    return usual;
  }

  virtual void Handle(HttpRequest request, std::shared_ptr<HttpResponder> responder) = 0;

  // Response for what the server itself finds wrong: malformed HTTP, limits, timeouts. `head` is
  // null where no head could be read.
  virtual HttpResponse ErrorResponse(int status, std::string_view message,
                                     const HttpRequest* head) = 0;
};

}  // namespace switchyard::coordinator::http
