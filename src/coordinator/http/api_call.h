// One request on its way through an API, and what all APIs work on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "switchyard/worker/v1/residency.pb.h"

#include "coordinator/engine.h"
#include "coordinator/http/api_error.h"
#include "coordinator/http/http_handler.h"
#include "coordinator/request_gate.h"
#include "coordinator/served_model.h"
#include "coordinator/serving_metrics.h"

namespace switchyard::coordinator::http {

// What the APIs stand on. All of it outlives them.
struct ApiContext {
  const ServedModel& model;
  RequestGate& gate;
  ServingMetrics& metrics;
  std::function<EngineStats()> stats;
  size_t max_buffered_bytes;  // of a stream whose client does not keep up
  std::string version;        // of the program
  // Of each rank; empty message = it has told nothing yet. Null = there are none.
  std::function<std::vector<switchyard::worker::v1::Residency>()> residency{};
};

// A request with the way to answer it.
//
// Threads: one at a time.
struct ApiCall {
  HttpRequest request;
  std::string request_id{};
  ErrorShape shape = ErrorShape::kOpenAi;
  std::shared_ptr<HttpResponder> responder;

  // Headers that every answer has.
  std::vector<HttpHeader> headers() const { return {{"X-Request-Id", request_id}}; }

  void Send(HttpResponse response) const;
  void Send(const Json& body) const;
  // Answers with an error that no one has counted yet.
  void Refuse(const absl::Status& status, ServingMetrics& metrics) const;
  // Answers with an error that is counted already.
  void Fail(const absl::Status& status) const;
  // The client is told nothing of our own faults, so the log says what they were.
  void LogIfInternal(const absl::Status& status) const;
};

}  // namespace switchyard::coordinator::http
