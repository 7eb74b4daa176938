// The whole HTTP face of the server: routes, keys, request ids, draining.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#include "coordinator/api_keys.h"
#include "coordinator/engine.h"
#include "coordinator/http/api_call.h"
#include "coordinator/http/http_server.h"
#include "coordinator/request_gate.h"
#include "coordinator/served_model.h"
#include "coordinator/serving_metrics.h"

namespace switchyard::coordinator::http {

struct HttpSurfaceOptions {
  HttpServerOptions server{};
  size_t max_buffered_bytes = size_t{1} << 20;  // of a stream whose client does not keep up
  bool has_slots = true;                        // serve GET /slots, which shows what others run
  std::string version{};                        // of the program, for /props
  // Where the experts of each rank are, for /api/residency; any thread. Null = nobody knows.
  std::function<std::vector<switchyard::worker::v1::Residency>()> residency{};
};

// One more route than the surface has itself.
struct HttpRoute {
  std::string method;  // "GET" or "POST"; GET answers HEAD too
  std::string path;    // one that ends with '/' stands for all below it
  bool needs_key = true;
  bool is_long = false;  // runs on a background thread
  std::function<void(ApiCall)> handle;
};

// Serves OpenAI's and Anthropic's APIs and the native endpoints on one listener. Says nothing about
// where it may listen: that is the caller's decision (see IsLoopback()).
//
// Call order: AddRoute() -> Start() -> BeginDrain() -> Stop().
class HttpSurface {
 public:
  // Everything referred to must outlive the surface. `stats`: of the engine; any thread. `keys`: of
  // which a request must bring one, as "Authorization: Bearer KEY" or "x-api-key: KEY", for all but
  // the health checks; null = none is needed.
  HttpSurface(const ServedModel& model, RequestGate& gate, ServingMetrics& metrics,
              std::function<EngineStats()> stats, const ApiKeys* keys,
              const HttpSurfaceOptions& options);
  // Stops without patience.
  ~HttpSurface();

  void AddRoute(HttpRoute route);

  // What is served, each as "GET /path"; what a path ends with in the place of "{id}" is free.
  std::vector<std::string> Routes() const;

  // Errors: those of HttpServer::Start().
  absl::Status Start();
  uint16_t port() const;

  // Health checks fail from here on, and the gate refuses new generations; what runs goes on.
  void BeginDrain();

  // Runs `work` where long texts are tokenised: it may compute, but must not wait for long.
  void RunInBackground(std::function<void()> work);

  // Lets running responses end, up to `patience_seconds`; then closes all connections.
  void Stop(double patience_seconds);

  int num_connections() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::coordinator::http
