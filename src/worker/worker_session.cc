#include "worker/worker_session.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include <google/protobuf/util/time_util.h>
#include <grpcpp/grpcpp.h>

#include "switchyard/worker/v1/session.grpc.pb.h"

#include "base/clock.h"
#include "base/grpc_status.h"
#include "base/log.h"
#include "base/process_memory.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "base/unpinned_scope.h"

namespace switchyard::worker {
namespace {

// Results that wait for a coordinator that does not read: far more than two plans can bring.
constexpr size_t kMaxWaitingBytes = size_t{256} << 20;
constexpr double kResidencySeconds = 1;  // between two messages of where the experts are
constexpr double kFarewellSeconds = 2;   // for a fault to arrive before the connection is cut

double Now() { return MonotonicClock::Get().NowSeconds(); }

double SecondsOf(const google::protobuf::Duration& duration) {
  return static_cast<double>(google::protobuf::util::TimeUtil::DurationToMilliseconds(duration)) /
         1000;
}

grpc::ChannelArguments ChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxWorkerMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxWorkerMessageBytes);
  // A peer that was cut off sends no reset. Faster pings would end the session of a coordinator
  // that was stopped for a second.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 2000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // The loop of Run() decides when to try again; the channel follows at once.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  return arguments;
}

// Whether trying again cannot help.
bool IsRefusal(const absl::Status& status) {
  return status.code() == absl::StatusCode::kFailedPrecondition ||
         status.code() == absl::StatusCode::kInvalidArgument ||
         status.code() == absl::StatusCode::kUnimplemented;
}

}  // namespace

// One session's stream.
class WorkerSession::Stream
    : public grpc::ClientBidiReactor<v1::WorkerSessionRequest, v1::WorkerSessionResponse> {
 public:
  Stream(Impl& impl, uint64_t lease_id) : impl_(impl), lease_id_(lease_id) {}

  void Start(v1::CoordinatorService::Stub& stub);
  void Send(v1::WorkerSessionRequest message);
  // Ends the session from this side once what was sent before is written.
  void EndInGoodOrder();
  void Cancel() { context_.TryCancel(); }
  bool is_done() const;  // nothing calls back any more
  const absl::Status& status() const { return status_; }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  Impl& impl_;
  const uint64_t lease_id_;
  grpc::ClientContext context_;
  v1::WorkerSessionResponse incoming_;
  // Guarded by impl_.mutex.
  std::deque<v1::WorkerSessionRequest> outgoing_;  // the first one is being written
  size_t outgoing_bytes_ = 0;
  bool ends_when_written_ = false;
  bool is_closed_ = false;  // no write any more
  bool is_done_ = false;
  absl::Status status_;
};

struct WorkerSession::Impl {
  Impl(CommandExecutor& command_executor, WorkerSessionOptions session_options)
      : executor(command_executor), options(std::move(session_options)) {}

  absl::StatusOr<v1::RegisterWorkerResponse> Register();
  // Serves one session to its end. OK = the worker has left.
  absl::Status Serve(const v1::RegisterWorkerResponse& lease);
  // Sends a heartbeat if it is time, looks after coordinator and step thread.
  void Attend(Stream& stream, const v1::RegisterWorkerResponse& lease);
  // Sends where the experts are, if that or their counts have changed.
  void TellResidency(Stream& stream, uint64_t epoch, double now);
  void OnCommand(v1::WorkerSessionResponse command);
  v1::WorkerState State() const;
  void SetReady(bool is_ready) {
    if (std::exchange(was_ready, is_ready) != is_ready) options.on_ready(is_ready);
  }
  // Notes that the worker leaves within `seconds`. REQUIRES: mutex is held.
  void LeaveLocked(double seconds);
  // Waits until the time or until something has happened.
  void Wait(double seconds);

  CommandExecutor& executor;
  WorkerSessionOptions options;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::CoordinatorService::Stub> stub;

  // Guards what follows, and the stream's state. Taken while the executor sends: whoever holds it
  // calls neither the executor nor anybody else.
  mutable std::mutex mutex;
  std::condition_variable changed;
  double heard = 0;  // the coordinator's last message
  bool is_leaving = false;
  double leave_by = 0;      // when the session is cut, if it leaves
  bool is_drained = false;  // no plan comes any more
  bool is_shut_down = false;

  // Of the thread of Run().
  double next_heartbeat = 0;
  double next_residency = 0;
  std::optional<std::pair<uint64_t, uint64_t>> told_residency;  // version and uses
  uint64_t sequence_number = 0;
  bool was_ready = false;
};

// ---- stream -------------------------------------------------------------------------------------

void WorkerSession::Stream::Start(v1::CoordinatorService::Stub& stub) {
  stub.async()->WorkerSession(&context_, this);
  AddHold();  // writes come from other threads; ends with the reads
  StartRead(&incoming_);
  StartCall();
}

void WorkerSession::Stream::Send(v1::WorkerSessionRequest message) {
  message.set_lease_id(lease_id_);
  std::lock_guard lock(impl_.mutex);
  if (is_closed_ || ends_when_written_) return;
  outgoing_bytes_ += message.ByteSizeLong();
  outgoing_.push_back(std::move(message));
  if (outgoing_.size() == 1) {
    // Called by the step thread too, and gRPC starts threads when it likes.
    const UnpinnedScope unpinned;
    StartWrite(&outgoing_.front());
  } else if (outgoing_bytes_ > kMaxWaitingBytes) {
    context_.TryCancel();
  }
}

void WorkerSession::Stream::EndInGoodOrder() {
  std::lock_guard lock(impl_.mutex);
  if (is_closed_ || std::exchange(ends_when_written_, true)) return;
  if (outgoing_.empty()) StartWritesDone();
}

void WorkerSession::Stream::OnWriteDone(bool ok) {
  std::lock_guard lock(impl_.mutex);
  outgoing_bytes_ -= outgoing_.front().ByteSizeLong();
  outgoing_.pop_front();
  if (!ok || is_closed_) {
    is_closed_ = true;
    return;
  }
  if (!outgoing_.empty()) {
    StartWrite(&outgoing_.front());
  } else if (ends_when_written_) {
    StartWritesDone();
  }
}

void WorkerSession::Stream::OnReadDone(bool ok) {
  if (ok) {
    impl_.OnCommand(std::move(incoming_));
    incoming_.Clear();
    StartRead(&incoming_);
    return;
  }
  {
    std::lock_guard lock(impl_.mutex);
    is_closed_ = true;
  }
  RemoveHold();
}

void WorkerSession::Stream::OnDone(const grpc::Status& status) {
  std::lock_guard lock(impl_.mutex);
  status_ = FromGrpcStatus(status);
  is_closed_ = is_done_ = true;
  impl_.changed.notify_all();
}

bool WorkerSession::Stream::is_done() const {
  std::lock_guard lock(impl_.mutex);
  return is_done_;
}

// ---- session ------------------------------------------------------------------------------------

void WorkerSession::Impl::Wait(double seconds) {
  std::unique_lock lock(mutex);
  changed.wait_for(lock, std::chrono::duration<double>(seconds));
}

void WorkerSession::Impl::OnCommand(v1::WorkerSessionResponse command) {
  if (command.has_shutdown()) LogInfo("is told to go: {}", command.shutdown().reason());
  {
    std::lock_guard lock(mutex);
    heard = Now();
    if (command.has_heartbeat()) return;
    is_shut_down = is_shut_down || command.has_shutdown();
    if (command.has_drain()) {
      is_drained = true;
      LeaveLocked(command.drain().has_deadline() ? SecondsOf(command.drain().deadline())
                                                 : options.drain_seconds);
    }
    if (command.has_shutdown() || command.has_drain()) return changed.notify_all();
  }
  executor.Execute(std::move(command));
}

void WorkerSession::Impl::LeaveLocked(double seconds) {
  const double by = Now() + std::max(seconds, 0.0);
  leave_by = is_leaving ? std::min(leave_by, by) : by;
  is_leaving = true;
}

absl::StatusOr<v1::RegisterWorkerResponse> WorkerSession::Impl::Register() {
  v1::RegisterWorkerRequest request = options.registration;
  request.set_protocol_version(kProtocolVersion);
  request.set_model_digest(executor.own_digest());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(static_cast<int64_t>(options.call_seconds * 1e3)));
  v1::RegisterWorkerResponse response;
  const grpc::Status status = stub->RegisterWorker(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

v1::WorkerState WorkerSession::Impl::State() const {
  {
    std::lock_guard lock(mutex);
    if (is_leaving) return v1::WORKER_STATE_DRAINING;
  }
  return executor.status().state;
}

void WorkerSession::Impl::Attend(Stream& stream, const v1::RegisterWorkerResponse& lease) {
  const double now = Now();
  if (executor.IsStuck(MonotonicClock::Get())) options.on_stuck();
  const bool should_leave = options.should_leave();
  double silence = 0;
  {
    std::lock_guard lock(mutex);
    silence = now - heard;
    if (!is_leaving && should_leave) {
      LeaveLocked(options.drain_seconds);
      next_heartbeat = now;  // tells so
    }
  }
  if (silence > SecondsOf(lease.lease_ttl())) {
    LogWarning("coordinator is silent for {:.1f} s", silence);
    return stream.Cancel();
  }
  const ExecutorStatus status = executor.status();
  const bool is_ready =
      status.state == v1::WORKER_STATE_READY || status.state == v1::WORKER_STATE_BUSY;
  SetReady(is_ready);
  if (now < next_heartbeat) return;
  next_heartbeat = now + SecondsOf(lease.heartbeat_interval());
  v1::WorkerSessionRequest message;
  message.set_epoch(status.epoch);
  v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.set_sequence_number(++sequence_number);
  heartbeat.set_state(State());
  heartbeat.set_num_waiting_plans(status.num_waiting_plans);
  heartbeat.set_last_plan(status.last_plan);
  heartbeat.set_last_step(status.last_step);
  const auto memory = ReadProcessMemory();
  if (memory.ok()) heartbeat.set_resident_bytes(static_cast<uint64_t>(memory->resident_bytes()));
  stream.Send(std::move(message));
  if (is_ready && now >= next_residency) TellResidency(stream, status.epoch, now);
}

void WorkerSession::Impl::TellResidency(Stream& stream, uint64_t epoch, double now) {
  next_residency = now + kResidencySeconds;
  auto residency = executor.Residency();
  if (!residency.ok()) return;  // nothing is loaded
  uint64_t uses = 0;
  for (const v1::ExpertCounters& layer : residency->layers()) {
    uses += layer.hits() + layer.misses();
  }
  const std::pair<uint64_t, uint64_t> state(residency->version(), uses);
  if (told_residency == state) return;
  told_residency = state;
  v1::WorkerSessionRequest message;
  message.set_epoch(epoch);
  *message.mutable_residency() = *std::move(residency);
  stream.Send(std::move(message));
}

absl::Status WorkerSession::Impl::Serve(const v1::RegisterWorkerResponse& lease) {
  {
    std::lock_guard lock(mutex);
    heard = Now();
  }
  next_heartbeat = 0;  // the first message names the lease
  next_residency = 0;
  told_residency.reset();
  sequence_number = 0;
  Stream stream(*this, lease.lease_id());
  executor.BeginSession(
      [&stream](v1::WorkerSessionRequest message) { stream.Send(std::move(message)); });
  stream.Start(*stub);
  double cut_at = 0;  // when the connection is cut, should it not end by itself
  while (!stream.is_done()) {
    if (cut_at == 0) {
      Attend(stream, lease);
      const bool has_failed = !executor.failure().ok();
      bool is_drained_now = false;
      {
        std::lock_guard lock(mutex);
        is_drained_now = is_drained;
        const bool is_late = is_leaving && Now() >= leave_by;
        if (is_shut_down || is_late) cut_at = Now();
        // The coordinator ends the session when the fault has arrived.
        if (has_failed) cut_at = Now() + kFarewellSeconds;
      }
      // Results of plans are with the stream before the executor says that there are none.
      if (is_drained_now && !executor.status().has_plans) stream.EndInGoodOrder();
    }
    if (cut_at != 0 && Now() >= cut_at) stream.Cancel();
    Wait(options.poll_seconds);
  }
  executor.EndSession();
  SetReady(false);
  SWITCHYARD_RETURN_IF_ERROR(executor.failure());
  {
    std::lock_guard lock(mutex);
    if (is_shut_down || is_leaving) return absl::OkStatus();
  }
  // OK: the coordinator has ended for good.
  return stream.status();
}

WorkerSession::WorkerSession(CommandExecutor& executor, WorkerSessionOptions options)
    : impl_(std::make_unique<Impl>(executor, std::move(options))) {}

WorkerSession::~WorkerSession() = default;

v1::WorkerState WorkerSession::state() const { return impl_->State(); }

absl::Status WorkerSession::Run() {
  impl_->channel = grpc::CreateCustomChannel(
      impl_->options.coordinator, grpc::InsecureChannelCredentials(), ChannelArguments());
  impl_->stub = v1::CoordinatorService::NewStub(impl_->channel);
  double last_session = Now();
  double retry_seconds = impl_->options.first_retry_seconds;
  while (true) {
    if (impl_->options.should_leave()) return absl::OkStatus();
    absl::Status status;
    const auto lease = impl_->Register();
    if (lease.ok()) {
      impl_->options.on_registered(*lease);
      status = impl_->Serve(*lease);
      if (status.ok()) return status;
      SWITCHYARD_RETURN_IF_ERROR(impl_->executor.failure());
      LogWarning("session has ended: {}", Message(status));
      last_session = Now();
      retry_seconds = impl_->options.first_retry_seconds;
    } else {
      status = lease.status();
    }
    if (IsRefusal(status)) return status;
    if (Now() - last_session > impl_->options.lost_seconds) {
      return Unavailable("no session for {:.1f} s: {}", Now() - last_session, Message(status));
    }
    const double next = Now() + retry_seconds;
    while (Now() < next && !impl_->options.should_leave()) impl_->Wait(impl_->options.poll_seconds);
    retry_seconds = std::min(2 * retry_seconds, impl_->options.max_retry_seconds);
  }
}

}  // namespace switchyard::worker
