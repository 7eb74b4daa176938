#include "coordinator/generation_service_reactors.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/grpc_status.h"
#include "base/status.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::generation::v1;

double Now() { return MonotonicClock::Get().NowSeconds(); }

}  // namespace

// ---- CallGeneration ---------------------------------------------------------------------------

absl::Status CallGeneration::Start(RequestGate& gate, PreparedCall call,
                                   std::function<void()> on_available) {
  limit_is_deadline_ = call.limit_is_deadline;
  auto stream = gate.Start(std::move(call.request.info), std::move(call.request.generation),
                           std::move(on_available));
  if (!stream.ok()) return stream.status();
  converter_.emplace(model_, (*stream)->request_id(), call.output);
  bool was_cancelled = false;
  {
    std::lock_guard lock(mutex_);
    stream_ = std::move(*stream);
    was_cancelled = is_cancelled_;
  }
  if (was_cancelled) stream_->Fail(why_);
  return absl::OkStatus();
}

void CallGeneration::Cancel(const absl::Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(is_cancelled_, true)) return;
    why_ = why;
    if (stream_ == nullptr) return;
  }
  stream_->Fail(why);
}

std::vector<v1::StreamGenerateResponse> CallGeneration::Take(std::optional<absl::Status>& end) {
  std::vector<v1::StreamGenerateResponse> out;
  while (out.empty() && !end) {
    const std::optional<GenerationEvent> event = stream_->Take();
    if (!event) break;
    out = converter_->Convert(*event);
    if (!event->finished) continue;
    end = EndOf(*event);
    // A call ends with an error or with `finished`, never with both.
    if (!end->ok() && !out.empty() && out.back().has_finished()) out.pop_back();
  }
  return out;
}

absl::Status CallGeneration::EndOf(const GenerationEvent& event) const {
  switch (event.reason) {
    case FinishReason::kFailed:
      return event.error;
    case FinishReason::kCancelled:
      return Cancelled("the generation was cancelled");
    case FinishReason::kTimeLimit:
      if (limit_is_deadline_) return DeadlineExceeded("the deadline of the call has passed");
      return absl::OkStatus();
    default:
      return absl::OkStatus();
  }
}

// ---- GenerateReactor --------------------------------------------------------------------------

void GenerateReactor::Begin(RequestGate& gate, absl::StatusOr<PreparedCall> call) {
  absl::Status status = call.status();
  if (!status.ok()) {
    gate.CountRefusal(status);
  } else {
    status = generation_.Start(gate, std::move(*call), [this] { Pump(/*begins=*/false); });
  }
  if (!status.ok()) {
    Finish(ToGrpcStatus(ForClients(status)));
    return;
  }
  Pump(/*begins=*/true);
}

void GenerateReactor::OnCancel() { generation_.Cancel(absl::OkStatus()); }

void GenerateReactor::Pump(bool begins) {
  std::optional<absl::Status> end;
  {
    std::lock_guard lock(mutex_);
    has_begun_ |= begins;
    if (!has_begun_ || is_finished_) return;
    while (!end) {
      auto events = generation_.Take(end);
      if (events.empty()) break;
      for (auto& event : events) AppendTo(*response_, std::move(event));
    }
    if (!end) return;
    is_finished_ = true;
  }
  Finish(ToGrpcStatus(ForClients(*end)));
}

// ---- StreamGenerateReactor --------------------------------------------------------------------

StreamGenerateReactor::StreamGenerateReactor(const ServedModel& model,
                                             grpc::CallbackServerContext* context,
                                             double stall_timeout_seconds)
    : context_(context), stall_timeout_seconds_(stall_timeout_seconds), generation_(model) {
  watch_->reactor = this;
}

StreamGenerateReactor::~StreamGenerateReactor() {
  std::lock_guard lock(watch_->mutex);
  watch_->reactor = nullptr;
  watch_->alarm.reset();
}

void StreamGenerateReactor::Begin(RequestGate& gate, absl::StatusOr<PreparedCall> call) {
  absl::Status status = call.status();
  if (!status.ok()) {
    gate.CountRefusal(status);
  } else {
    status = generation_.Start(gate, std::move(*call), [this] { Pump(/*begins=*/false); });
  }
  if (!status.ok()) {
    Finish(ToGrpcStatus(ForClients(status)));
    return;
  }
  {
    std::lock_guard lock(watch_->mutex);
    SetAlarm(stall_timeout_seconds_);
  }
  Pump(/*begins=*/true);
}

void StreamGenerateReactor::OnCancel() { generation_.Cancel(absl::OkStatus()); }

void StreamGenerateReactor::OnWriteDone(bool ok) {
  if (!ok) generation_.Cancel(absl::OkStatus());
  {
    std::lock_guard lock(mutex_);
    is_writing_ = false;
    is_broken_ |= !ok;
  }
  Pump(/*begins=*/false);
}

void StreamGenerateReactor::Pump(bool begins) {
  bool writes = false;
  {
    std::lock_guard lock(mutex_);
    has_begun_ |= begins;
    if (!has_begun_ || is_writing_ || is_finished_) return;
    if (queue_.empty() && !end_) {
      for (auto& event : generation_.Take(end_)) queue_.push_back(std::move(event));
    }
    if (is_broken_) queue_.clear();
    writes = !queue_.empty();
    if (!writes && !end_) return;
    if (writes) {
      is_writing_ = true;
      write_seconds_ = Now();
      in_flight_ = std::move(queue_.front());
      queue_.pop_front();
    } else {
      is_finished_ = true;
    }
  }
  if (writes) {
    StartWrite(&in_flight_);
  } else {
    Finish(ToGrpcStatus(ForClients(*end_)));
  }
}

// Under the watch's lock.
void StreamGenerateReactor::SetAlarm(double seconds) {
  watch_->alarm = std::make_unique<grpc::Alarm>();
  const auto when = std::chrono::system_clock::now() +
                    std::chrono::microseconds(std::llround(std::ceil(seconds * 1e6)));
  watch_->alarm->Set(when, [watch = watch_](bool rang) {
    if (!rang) return;  // the reactor is gone, or the alarm was set anew
    std::lock_guard lock(watch->mutex);
    if (watch->reactor != nullptr) watch->reactor->CheckForStall();
  });
}

void StreamGenerateReactor::CheckForStall() {
  double seconds_left = stall_timeout_seconds_;
  {
    std::lock_guard lock(mutex_);
    if (is_finished_) return;
    if (is_writing_) seconds_left = write_seconds_ + stall_timeout_seconds_ - Now();
  }
  if (seconds_left > 0) {
    SetAlarm(seconds_left);
    return;
  }
  // A status cannot overtake the message that the client does not read: the call is reset, which
  // the client sees as CANCELLED.
  generation_.Cancel(SlowReader());
  context_->TryCancel();
}

}  // namespace switchyard::coordinator
