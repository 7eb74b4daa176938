#include "coordinator/http/generation_call.h"

#include <atomic>
#include <fmt/format.h>
#include <utility>

#include "base/error_info.h"
#include "base/log.h"
#include "base/status.h"

namespace switchyard::coordinator::http {
namespace {

// Lives on the connection's strand: its callbacks own it, so it dies with the exchange, and with it
// the stream, which cancels the generation. The engine's thread only wakes it.
class GenerationCall : public std::enable_shared_from_this<GenerationCall> {
 public:
  GenerationCall(ApiCall call, std::unique_ptr<AnswerWriter> writer, bool is_streamed)
      : call_(std::move(call)), writer_(std::move(writer)), is_streamed_(is_streamed) {}

  void Start(const ApiContext& context, RequestInfo info, GenerationRequest request) {
    const auto self = shared_from_this();
    call_.responder->SetCallbacks(
        {.on_writable = [self] { self->Pump(); }, .on_closed = [self] { self->OnClosed(); }});
    // Weak, since the engine keeps its callback until the generation ends.
    auto stream = context.gate.Start(std::move(info), std::move(request),
                                     [weak = std::weak_ptr<GenerationCall>(self)] {
                                       if (const auto call = weak.lock()) call->Wake();
                                     });
    if (!stream.ok()) {
      call_.Fail(stream.status());  // the gate has counted it
      return;
    }
    if (is_streamed_) {
      HttpStreamHead head;
      head.headers = call_.headers();
      head.headers.push_back({"Cache-Control", "no-cache"});
      head.headers.push_back({"X-Accel-Buffering", "no"});
      head.ping = writer_->Ping();
      call_.responder->StartStream(std::move(head));
    }
    // If the client has left already, nothing runs, and the stream dies with the function.
    call_.responder->Post([self, held = std::make_shared<std::unique_ptr<GenerationStream>>(
                                     *std::move(stream))] { self->Adopt(std::move(*held)); });
  }

 private:
  // Any thread: many events make one run.
  void Wake() {
    if (is_woken_.exchange(true)) return;
    call_.responder->Post([self = shared_from_this()] { self->Pump(); });
  }

  void Adopt(std::unique_ptr<GenerationStream> stream) {
    if (is_over_) return;
    stream_ = std::move(stream);
    Pump();
  }

  void OnClosed() {
    if (!is_over_) {
      LogDebug("{} {} {}: 499, the client has left", call_.request_id, call_.request.method,
               call_.request.path());
    }
    End();
  }

  void End() {
    is_over_ = true;
    stream_.reset();
  }

  // Passes on what has come, as long as the client takes it.
  void Pump() {
    is_woken_ = false;
    while (!is_over_ && stream_ != nullptr && (!is_streamed_ || call_.responder->is_writable())) {
      const std::optional<GenerationEvent> event = stream_->Take();
      if (!event.has_value()) return;
      Pass(*event);
    }
  }

  void Pass(const GenerationEvent& event) {
    if (event.finished &&
        (event.reason == FinishReason::kFailed || event.reason == FinishReason::kCancelled)) {
      OnFailed(event);
      return;
    }
    std::string text = writer_->OnEvent(event);
    HttpResponder& responder = *call_.responder;
    if (is_streamed_ && !text.empty()) responder.Write(std::move(text));
    if (!event.finished) return;
    if (is_streamed_) {
      responder.Finish();
      LogDebug("{} {} {}: 200, streamed", call_.request_id, call_.request.method,
               call_.request.path());
    } else {
      call_.Send(writer_->Response());
    }
    End();
  }

  void OnFailed(const GenerationEvent& event) {
    // Nobody but the server cancels a generation whose client is still there.
    const absl::Status status =
        event.reason == FinishReason::kFailed
            ? event.error
            : WithReason(Unavailable("the server is stopping: the generation was cancelled"),
                         kDraining);
    if (is_streamed_ && call_.responder->has_sent()) {
      // What came before the failure may have been merged with it.
      call_.LogIfInternal(status);
      GenerationEvent rest = event;
      rest.finished = false;
      call_.responder->Write(writer_->OnEvent(rest) + writer_->ErrorEvent(status));
      call_.responder->Finish();
    } else {
      call_.Fail(status);
    }
    End();
  }

  const ApiCall call_;
  const std::unique_ptr<AnswerWriter> writer_;
  const bool is_streamed_;
  std::atomic<bool> is_woken_ = false;
  std::unique_ptr<GenerationStream> stream_;
  bool is_over_ = false;
};

}  // namespace

std::string SseEvent(const Json& data, std::string_view name) {
  const std::string text = JsonText(data);
  return name.empty() ? fmt::format("data: {}\n\n", text)
                      : fmt::format("event: {}\ndata: {}\n\n", name, text);
}

void StartGeneration(const ApiContext& context, ApiCall call, std::string api,
                     GenerationRequest request, std::map<std::string, std::string> labels,
                     std::unique_ptr<AnswerWriter> writer, bool is_streamed) {
  RequestInfo info{.request_id = call.request_id,
                   .api = std::move(api),
                   .labels = std::move(labels),
                   .max_buffered_bytes = context.max_buffered_bytes,
                   .arrival_seconds = call.request.received_seconds};
  // It is converted; streams may live long.
  call.request.body = std::string();
  call.request.body_share.reset();
  std::make_shared<GenerationCall>(std::move(call), std::move(writer), is_streamed)
      ->Start(context, std::move(info), std::move(request));
}

}  // namespace switchyard::coordinator::http
