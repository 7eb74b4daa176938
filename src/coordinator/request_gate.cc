#include "coordinator/request_gate.h"

#include <chrono>
#include <fmt/format.h>
#include <random>
#include <utility>

#include "base/error_info.h"
#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/event_buffer.h"
#include "coordinator/request_limits.h"

namespace switchyard::coordinator {

std::string MakeRequestId() {
  static thread_local std::mt19937_64 random{(static_cast<uint64_t>(std::random_device{}()) << 32) |
                                             std::random_device{}()};
  return fmt::format("req-{:016x}", random());
}

absl::Status SlowReader() {
  return WithReason(ResourceExhausted("the client reads too slowly: its stream was cancelled"),
                    kSlowReader);
}

// What the stream, the gate and the engine's callback share of one request.
class GenerationStream::Running {
 public:
  Running(RequestGate& gate, RequestInfo info, double now_seconds,
          std::function<void()> on_available)
      : gate_(gate),
        info_(std::move(info)),
        arrival_seconds_(info_.arrival_seconds.value_or(now_seconds)),
        delay_seconds_(now_seconds - arrival_seconds_),
        buffer_(info_.max_buffered_bytes),
        on_available_(std::move(on_available)) {}

  const std::string& request_id() const { return info_.request_id; }
  EventBuffer& buffer() { return buffer_; }

  void OnStarted(uint64_t generation_id) {
    bool was_cancelled = false;
    {
      std::lock_guard lock(mutex_);
      generation_id_ = generation_id;
      was_cancelled = is_cancelled_ && !has_finished_;
    }
    if (was_cancelled) gate_.generator_.Cancel(generation_id);
  }

  // Ends the generation; with an error its last event says so. What comes before the engine has
  // named the generation is made up for by OnStarted().
  void Cancel(const absl::Status& why) {
    uint64_t id = 0;
    {
      std::lock_guard lock(mutex_);
      if (has_finished_ || std::exchange(is_cancelled_, true)) return;
      why_ = why;
      id = generation_id_;
    }
    if (id != 0) gate_.generator_.Cancel(id);
  }

  // The engine's thread.
  void OnEvent(GenerationEvent event) {
    event.timings.queue_seconds += delay_seconds_;
    event.timings.total_seconds += delay_seconds_;
    if (event.usage.completion_tokens > 0) event.timings.ttft_seconds += delay_seconds_;
    {
      std::lock_guard lock(mutex_);
      // After an overflow text is missing, however the generation ended.
      const bool ends_by_itself = event.reason != FinishReason::kCancelled && !has_overflowed_;
      if (event.finished && !why_.ok() && !ends_by_itself) {
        event.reason = FinishReason::kFailed;
        event.stop_sequence.clear();
        event.error = why_;
      }
      has_started_ |= event.started;
      has_finished_ = event.finished;
      num_prefilled_ = event.num_prefilled;
      usage_ = event.usage;
    }
    gate_.metrics_.OnEvent(progress_, event);
    // Who sees the last event may use the id again.
    if (event.finished) gate_.Forget(request_id());
    if (!buffer_.Push(event) && !has_overflowed_) {
      has_overflowed_ = true;
      Cancel(SlowReader());
    }
    {
      std::lock_guard lock(callback_mutex_);
      if (!is_abandoned_) on_available_();
    }
    if (event.finished) {
      LogEnd(event);
      gate_.OnEnded();
    }
  }

  // One line a request, with nothing of what was asked or answered.
  void LogEnd(const GenerationEvent& event) const {
    constexpr double kMilliseconds = 1000;
    LogInfo(
        "request ended: id={} api={} reason={} prompt_tokens={} cached_tokens={} "
        "completion_tokens={} queue_ms={:.1f} ttft_ms={:.1f} total_ms={:.1f} replays={}",
        info_.request_id, info_.api, Name(event.reason), event.usage.prompt_tokens,
        event.usage.cached_tokens, event.usage.completion_tokens,
        event.timings.queue_seconds * kMilliseconds, event.timings.ttft_seconds * kMilliseconds,
        event.timings.total_seconds * kMilliseconds, event.num_replays);
  }

  // After this no call of on_available is under way or begins.
  void Abandon() {
    std::lock_guard lock(callback_mutex_);
    is_abandoned_ = true;
  }

  RunningRequest Describe(double now_seconds) const {
    std::lock_guard lock(mutex_);
    return {.request_id = info_.request_id,
            .api = info_.api,
            .labels = info_.labels,
            .generation_id = generation_id_,
            .age_seconds = now_seconds - arrival_seconds_,
            .has_started = has_started_,
            .num_prefilled = num_prefilled_,
            .usage = usage_};
  }

 private:
  RequestGate& gate_;
  const RequestInfo info_;
  const double arrival_seconds_;
  const double delay_seconds_;  // from arrival to the start of the generation
  EventBuffer buffer_;

  // Recursive, since a stream may be destroyed by its own callback.
  std::recursive_mutex callback_mutex_;
  bool is_abandoned_ = false;
  const std::function<void()> on_available_;

  // The engine's thread only.
  bool has_overflowed_ = false;
  ServingMetrics::RequestProgress progress_;

  mutable std::mutex mutex_;
  uint64_t generation_id_ = 0;  // 0 = not known yet; the engine counts from 1
  bool is_cancelled_ = false;
  absl::Status why_;  // OK = cancelled by the client
  bool has_started_ = false;
  bool has_finished_ = false;
  int64_t num_prefilled_ = 0;
  Usage usage_;
};

// ---- GenerationStream ---------------------------------------------------------------------------

GenerationStream::GenerationStream(std::shared_ptr<Running> running)
    : running_(std::move(running)) {}

GenerationStream::~GenerationStream() {
  running_->Abandon();
  running_->Cancel(absl::OkStatus());
}

const std::string& GenerationStream::request_id() const { return running_->request_id(); }
std::optional<GenerationEvent> GenerationStream::Take() { return running_->buffer().Take(); }
void GenerationStream::Cancel() { running_->Cancel(absl::OkStatus()); }
void GenerationStream::Fail(const absl::Status& why) { running_->Cancel(why); }

// ---- RequestGate --------------------------------------------------------------------------------

RequestGate::RequestGate(Generator& generator, ServingMetrics& metrics,
                         const RequestGateOptions& options)
    : generator_(generator), metrics_(metrics), options_(options) {}

RequestGate::~RequestGate() {
  BeginDrain();
  CancelAll();
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return num_active_ == 0; });
}

absl::StatusOr<std::unique_ptr<GenerationStream>> RequestGate::Start(
    RequestInfo info, GenerationRequest request, std::function<void()> on_available) {
  const auto begin = [&]() -> absl::StatusOr<std::unique_ptr<GenerationStream>> {
    SWITCHYARD_RETURN_IF_ERROR(CheckRequestLimits(info, request));
    if (info.request_id.empty()) info.request_id = MakeRequestId();
    auto running = std::make_shared<Running>(*this, std::move(info), options_.clock->NowSeconds(),
                                             std::move(on_available));
    SWITCHYARD_RETURN_IF_ERROR(Admit(running));
    auto id = generator_.Start(
        std::move(request), [running](const GenerationEvent& event) { running->OnEvent(event); });
    if (!id.ok()) {
      Forget(running->request_id());
      OnEnded();
      return id.status();
    }
    running->OnStarted(*id);
    return std::unique_ptr<GenerationStream>(new GenerationStream(std::move(running)));
  };
  auto stream = begin();
  if (!stream.ok()) metrics_.OnError(stream.status());
  return stream;
}

absl::Status RequestGate::Admit(const std::shared_ptr<Running>& running) {
  std::lock_guard lock(mutex_);
  SWITCHYARD_RETURN_IF_ERROR(Refusal(StateLocked()));
  if (!running_.emplace(running->request_id(), running).second) {
    return WithField(AlreadyExists("a request with this id is running: {}", running->request_id()),
                     "request_id");
  }
  ++num_active_;
  return absl::OkStatus();
}

absl::Status RequestGate::Refusal(GateState state) const {
  const auto refuse = [](std::string_view reason, double seconds, absl::Status status) {
    return WithRetryAfter(WithReason(std::move(status), reason), seconds);
  };
  switch (state) {
    case GateState::kServing:
    case GateState::kRecovering:  // the engine keeps what comes until the worker is back
      return absl::OkStatus();
    case GateState::kLoading:
      return refuse(kModelLoading, options_.retry_after_loading_seconds,
                    Unavailable("the model is being loaded"));
    case GateState::kDraining:
      return refuse(kDraining, options_.retry_after_draining_seconds,
                    Unavailable("the server is stopping"));
    case GateState::kFailed:
      return refuse(kWorkerLost, options_.retry_after_loss_seconds,
                    Unavailable("a worker was lost for good"));
  }
  return Internal("unknown state");
}

GateState RequestGate::StateLocked() const {
  if (is_draining_) return GateState::kDraining;
  switch (engine_state_) {
    case EngineState::kLoading:
      return GateState::kLoading;
    case EngineState::kServing:
      return GateState::kServing;
    case EngineState::kRecovering:
      return GateState::kRecovering;
    case EngineState::kFailed:
      return GateState::kFailed;
  }
  return GateState::kFailed;
}

template <typename Change>
void RequestGate::Transition(Change change) {
  std::lock_guard listeners_lock(listeners_mutex_);
  GateState after{};
  {
    std::lock_guard lock(mutex_);
    const GateState before = StateLocked();
    change();
    after = StateLocked();
    if (after == before) return;
  }
  for (const auto& listener : listeners_) listener(after);
}

void RequestGate::SetEngineState(EngineState state) {
  Transition([&] { engine_state_ = state; });
}

void RequestGate::BeginDrain() {
  Transition([&] { is_draining_ = true; });
}

bool RequestGate::WaitUntilIdle(double seconds) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, std::chrono::duration<double>(seconds),
                        [&] { return num_active_ == 0; });
}

void RequestGate::CancelAll() {
  std::vector<std::shared_ptr<Running>> all;
  absl::Status why;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, running] : running_) all.push_back(running);
    if (is_draining_) why = Refusal(GateState::kDraining);
  }
  for (const auto& running : all) running->Cancel(why);
}

GateState RequestGate::state() const {
  std::lock_guard lock(mutex_);
  return StateLocked();
}

void RequestGate::OnStateChange(std::function<void(GateState)> listener) {
  std::lock_guard lock(listeners_mutex_);
  listener(state());
  listeners_.push_back(std::move(listener));
}

std::vector<RunningRequest> RequestGate::running() const {
  std::vector<std::shared_ptr<Running>> all;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, running] : running_) all.push_back(running);
  }
  std::vector<RunningRequest> out;
  const double now_seconds = options_.clock->NowSeconds();
  for (const auto& running : all) out.push_back(running->Describe(now_seconds));
  return out;
}

void RequestGate::Forget(const std::string& request_id) {
  std::lock_guard lock(mutex_);
  running_.erase(request_id);
}

// The last thing that is done for a request: the gate may be gone right after.
void RequestGate::OnEnded() {
  std::lock_guard lock(mutex_);
  if (--num_active_ == 0) idle_.notify_all();
}

}  // namespace switchyard::coordinator
