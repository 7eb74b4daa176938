// Which requests come in, and what runs: the one object behind all APIs.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/clock.h"
#include "coordinator/engine.h"
#include "coordinator/generator.h"
#include "coordinator/serving_metrics.h"

namespace switchyard::coordinator {

enum class GateState {
  kLoading,     // the worker has never been ready
  kServing,     // takes requests
  kRecovering,  // the worker was lost and may come back; requests are taken and wait
  kDraining,    // ends what runs, takes nothing new; never left
  kFailed,      // the worker is lost for good
};

// "req-" and 16 hexadecimal digits. Ids only have to differ among the requests that run; guessing
// one gives no access to anything.
std::string MakeRequestId();

// A request without what is generated.
struct RequestInfo {
  std::string request_id;  // "" = one is made by MakeRequestId()
  std::string api;         // which API took it: "grpc", "openai", "anthropic" or "native"
  std::map<std::string, std::string> labels;
  size_t max_buffered_bytes = size_t{1} << 20;  // of events that wait for the client
  // When the last byte of the request was received, on RequestGateOptions::clock; absent = now.
  std::optional<double> arrival_seconds;
};

// A request that runs, for people and monitors.
struct RunningRequest {
  std::string request_id;
  std::string api;
  std::map<std::string, std::string> labels;
  uint64_t generation_id = 0;  // as in SlotInfo; 0 = not known to the engine yet
  double age_seconds = 0;      // since its arrival
  bool has_started = false;    // has left the queue
  int64_t num_prefilled = 0;
  Usage usage;
};

// One running request, as an API holds it.
//
// Threads: Take() from one at a time, the rest from any. Destroying it from within its own
//          `on_available` is allowed. Not while holding a lock that `on_available` takes: the
//          destructor waits for a call that is under way, and none begins after it.
class GenerationStream {
 public:
  // Cancels what still runs.
  ~GenerationStream();
  GenerationStream(const GenerationStream&) = delete;
  GenerationStream& operator=(const GenerationStream&) = delete;

  const std::string& request_id() const;

  // What has come since the last call, merged; nothing if nothing has. The last event has
  // `finished` set. Call until it returns nothing: two calls of `on_available` may be one event,
  // and one call may be two.
  std::optional<GenerationEvent> Take();

  // Ends the generation within one step; an event with kCancelled follows. Idempotent.
  void Cancel();

  // The same, but the event says kFailed with `why`, unless the generation ends by itself first.
  void Fail(const absl::Status& why);

 private:
  friend class RequestGate;
  class Running;
  explicit GenerationStream(std::shared_ptr<Running> running);

  const std::shared_ptr<Running> running_;
};

// How a stream ends whose client does not take its events: kResourceExhausted, kSlowReader.
absl::Status SlowReader();

struct RequestGateOptions {
  // When a refused client should try again.
  double retry_after_loading_seconds = 5;
  double retry_after_draining_seconds = 5;
  double retry_after_loss_seconds = 5;
  const Clock* clock = &MonotonicClock::Get();
};

// Lets requests in, gives them ids, follows them with the metrics, and drains.
//
// Times in events count from the arrival of the request instead of Generator::Start(). A stream
// whose client does not keep up is cancelled: its last event is kFailed with kResourceExhausted and
// reason kSlowReader.
//
// Threads: any. No lock of the gate is held while `on_available` is called.
class RequestGate {
 public:
  // `generator` and `metrics` must outlive the gate.
  RequestGate(Generator& generator, ServingMetrics& metrics,
              const RequestGateOptions& options = {});

  // Cancels what runs and waits for the last events.
  ~RequestGate();

  // Begins a request. `on_available` comes from the engine's thread after each event, may come
  // before this returns, and must not block.
  //
  // Errors: kInvalidArgument (see CheckRequestLimits() and Generator::Start()); kAlreadyExists (the
  //         id is in use); kUnavailable with reason kModelLoading, kDraining or kWorkerLost and
  //         when to try again; kResourceExhausted with reason kQueueFull and when to try again.
  absl::StatusOr<std::unique_ptr<GenerationStream>> Start(RequestInfo info,
                                                          GenerationRequest request,
                                                          std::function<void()> on_available);

  // Counts a request that an API refused before it came here, such as one with a wrong key.
  void CountRefusal(const absl::Status& status) { metrics_.OnError(status); }

  // Where the engine stands: connect it with EngineOptions::on_state_change.
  void SetEngineState(EngineState state);

  // Refuses new requests from here on; what runs goes on.
  void BeginDrain();

  // Waits until no request runs and none is still delivering its last event. False: not within
  // `seconds`.
  bool WaitUntilIdle(double seconds);

  // Ends every request that runs: cancelled, or, in a drain, failed with reason kDraining.
  void CancelAll();

  GateState state() const;
  bool is_ready() const { return state() == GateState::kServing; }

  // Adds a listener: called at once with the present state, then with each new one, in order.
  // It must not call the gate's setters.
  void OnStateChange(std::function<void(GateState)> listener);

  std::vector<RunningRequest> running() const;

 private:
  using Running = GenerationStream::Running;
  friend class GenerationStream::Running;

  absl::Status Admit(const std::shared_ptr<Running>& running);
  absl::Status Refusal(GateState state) const;
  GateState StateLocked() const;
  template <typename Change>
  void Transition(Change change);
  void Forget(const std::string& request_id);
  void OnEnded();

  Generator& generator_;
  ServingMetrics& metrics_;
  const RequestGateOptions options_;

  std::mutex listeners_mutex_;  // held while listeners are called, to keep their order
  std::vector<std::function<void(GateState)>> listeners_;

  mutable std::mutex mutex_;
  std::condition_variable idle_;
  EngineState engine_state_ = EngineState::kLoading;
  bool is_draining_ = false;
  std::map<std::string, std::shared_ptr<Running>> running_;
  int num_active_ = 0;  // of Start() or events of a request that are not over
};

}  // namespace switchyard::coordinator
