// A generation on its way to one HTTP client, streamed or whole.
#pragma once

#include <memory>
#include <string>

#include "coordinator/generator.h"
#include "coordinator/http/api_call.h"

namespace switchyard::coordinator::http {

// Gives a generation the form of an API.
//
// Threads: one at a time.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // Takes the next event. For a stream, returns what goes to the client because of it: whole
  // server-sent events, maybe none. Not called for events that failed.
  virtual std::string OnEvent(const GenerationEvent& event) = 0;

  // The whole answer. REQUIRES: the event with `finished` was taken.
  virtual Json Response() = 0;

  // An error, as an event of a stream that has begun.
  virtual std::string ErrorEvent(const absl::Status& status) = 0;

  // What keeps a waiting stream alive.
  virtual std::string Ping() const { return ": ping\n\n"; }
};

// "data: <json>\n\n", for APIs that name events with "event: <name>\n" before it.
std::string SseEvent(const Json& data, std::string_view name = "");

// Starts the generation and answers `call` with what `writer` makes of it. A client that leaves
// cancels it; a client that reads slowly gets merged events, and a stream that would wait for more
// than ApiContext::max_buffered_bytes is cancelled.
//
// A stream sends nothing before its first event (or ping), so that an error until then is an
// ordinary error response.
//
// Threads: any; does not block.
void StartGeneration(const ApiContext& context, ApiCall call, std::string api,
                     GenerationRequest request, std::map<std::string, std::string> labels,
                     std::unique_ptr<AnswerWriter> writer, bool is_streamed);

}  // namespace switchyard::coordinator::http
