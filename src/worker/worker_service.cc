#include "worker/worker_service.h"

#include <algorithm>
#include <chrono>
#include <mutex>

#include <google/protobuf/util/time_util.h>
#include <grpcpp/alarm.h>

#include "base/clock.h"
#include "base/grpc_status.h"
#include "base/process_memory.h"
#include "base/status.h"

namespace switchyard::worker {
namespace {

constexpr int64_t kMinIntervalMs = 10;
constexpr int64_t kDefaultIntervalMs = 1000;
constexpr int64_t kMaxIntervalMs = int64_t{24} * 3600 * 1000;

// Writes the sums, waits, and so on until the client goes.
class TelemetryStream final : public grpc::ServerWriteReactor<v1::StreamTelemetryResponse> {
 public:
  TelemetryStream(const CommandExecutor& executor, int64_t interval_ms)
      : executor_(executor), interval_(interval_ms) {
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    {
      std::lock_guard lock(mutex_);
      is_waiting_ = ok && !is_cancelled_;
      if (is_waiting_) {
        alarm_.Set(std::chrono::system_clock::now() + interval_, [this](bool) { OnAlarm(); });
        return;
      }
    }
    Finish(grpc::Status::CANCELLED);
  }
  void OnCancel() override {
    std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    if (is_waiting_) alarm_.Cancel();  // its callback comes at once, and finishes
  }
  void OnDone() override { delete this; }

 private:
  void WriteNext() {
    message_ = executor_.Telemetry();
    message_.set_time_ns(static_cast<uint64_t>(MonotonicClock::Get().NowSeconds() * 1e9));
    StartWrite(&message_);
  }
  void OnAlarm() {
    {
      std::lock_guard lock(mutex_);
      is_waiting_ = false;
      if (!is_cancelled_) return WriteNext();
    }
    Finish(grpc::Status::CANCELLED);  // the last that is done here: the object may go at once
  }

  const CommandExecutor& executor_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  grpc::Alarm alarm_;
  bool is_waiting_ = false;
  bool is_cancelled_ = false;
  v1::StreamTelemetryResponse message_;
};

// A stream that ends at once.
class RefusedStream final : public grpc::ServerWriteReactor<v1::StreamTelemetryResponse> {
 public:
  explicit RefusedStream(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerUnaryReactor* WorkerService::GetWorkerStatus(grpc::CallbackServerContext* context,
                                                         const v1::GetWorkerStatusRequest*,
                                                         v1::GetWorkerStatusResponse* response) {
  const ExecutorStatus status = executor_.status();
  response->set_worker_id(registration_.worker_id());
  response->set_incarnation(registration_.incarnation());
  response->set_epoch(status.epoch);
  response->set_state(state_());
  *response->mutable_build() = registration_.build();
  response->set_device(status.device);
  response->set_weight_bytes(status.weight_bytes);
  response->set_num_steps(executor_.Telemetry().num_steps());
  response->set_num_dropped_plans(status.num_dropped_plans);
  const auto memory = ReadProcessMemory();
  if (memory.ok()) response->set_resident_bytes(static_cast<uint64_t>(memory->resident_bytes()));
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* WorkerService::GetResidency(grpc::CallbackServerContext* context,
                                                      const v1::GetResidencyRequest* request,
                                                      v1::GetResidencyResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  auto residency = executor_.Residency();
  if (!residency.ok()) {
    reactor->Finish(ToGrpcStatus(residency.status()));
    return reactor;
  }
  v1::Residency& out = *response->mutable_residency();
  out = *std::move(residency);
  if (request->since_version() >= out.version()) {
    out.clear_states();
    out.clear_uses();
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<v1::StreamTelemetryResponse>* WorkerService::StreamTelemetry(
    grpc::CallbackServerContext*, const v1::StreamTelemetryRequest* request) {
  using google::protobuf::util::TimeUtil;
  const int64_t interval_ms = request->has_interval()
                                  ? TimeUtil::DurationToMilliseconds(request->interval())
                                  : kDefaultIntervalMs;
  if (interval_ms < kMinIntervalMs) {
    return new RefusedStream(
        grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                     fmt::format("interval is too short: interval, got ms: {}, at least: {}",
                                 interval_ms, kMinIntervalMs)));
  }
  return new TelemetryStream(executor_, std::min(interval_ms, kMaxIntervalMs));
}

}  // namespace switchyard::worker
