#include "coordinator/cluster.h"

#include <algorithm>
#include <utility>

#include <google/protobuf/util/time_util.h>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

constexpr size_t kMaxWorkerIdBytes = 128;
constexpr size_t kMaxTextBytes = 1024;  // of other texts that a worker tells
// What a worker that was told to go may take to end its process.
constexpr double kGoSeconds = 5;
// A survivor that has not entered a new epoch after this time and a step's is given up.
constexpr double kEnterSeconds = 5;

bool IsPrintable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
}

// What a worker says is put into logs and answers: one line, not too long.
std::string OneLine(const std::string& text) {
  std::string out = text.substr(0, kMaxTextBytes);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return out;
}

std::string NameOf(const v1::RegisterWorkerRequest& info) {
  return fmt::format("worker {} (pid {})", info.worker_id(), info.pid());
}

absl::Status StatusOfFault(const v1::Fault& fault) {
  const bool is_code = fault.code() > 0 && fault.code() <= 16;  // google.rpc.Code
  return absl::Status(
      is_code ? static_cast<absl::StatusCode>(fault.code()) : absl::StatusCode::kInternal,
      OneLine(fault.message()));
}

google::protobuf::Duration DurationOf(double seconds) {
  return google::protobuf::util::TimeUtil::MillisecondsToDuration(
      static_cast<int64_t>(seconds * 1000));
}

}  // namespace

Cluster::Cluster(const ClusterOptions& options, const Clock& clock, ClusterEvents& events)
    : options_(options),
      clock_(clock),
      events_(events),
      random_(options.lease_seed),
      members_(static_cast<size_t>(options.world_size)),
      plans_(options.configure.sizes(), options.vocab_size) {
  SWITCHYARD_CHECK(options.world_size >= 1 && !options.configure.model_digest().empty());
}

// ---- joining ------------------------------------------------------------------------------------

Cluster::Member* Cluster::FindLease(uint64_t lease_id) {
  for (Member& member : members_) {
    if (member.phase != Phase::kVacant && member.lease_id == lease_id) return &member;
  }
  return nullptr;
}

absl::Status Cluster::CheckRegistration(const v1::RegisterWorkerRequest& request) const {
  if (state_ == GroupState::kStopped) return Unavailable("the group has ended");
  if (is_draining_) return Unavailable("the group is ending");
  if (request.protocol_version() != kWorkerProtocolVersion) {
    return FailedPrecondition(
        "worker speaks another protocol: protocol_version, got: {}, wanted: {}",
        request.protocol_version(), kWorkerProtocolVersion);
  }
  const std::string& id = request.worker_id();
  if (id.empty() || id.size() > kMaxWorkerIdBytes || !IsPrintable(id)) {
    return InvalidArgument("worker has no valid name: worker_id, wanted: 1 to {} printable bytes",
                           kMaxWorkerIdBytes);
  }
  if (request.incarnation() == 0) return InvalidArgument("field is missing: incarnation");
  for (const std::string* text :
       {&request.host(), &request.boot_id(), &request.service_address()}) {
    if (text->size() > kMaxTextBytes) return InvalidArgument("text is too long: RegisterWorker");
  }
  const std::string& digest = options_.configure.model_digest();
  if (!request.model_digest().empty() && request.model_digest() != digest) {
    return FailedPrecondition("worker has another model file: model_digest, got: {}, wanted: {}",
                              OneLine(request.model_digest()), digest);
  }
  if (request.model_digest().empty() && options_.configure.model_path().empty()) {
    return FailedPrecondition("worker has no model file, and this group names none");
  }
  return absl::OkStatus();
}

Cluster::Member* Cluster::FindPlace(const std::string& worker_id) {
  Member* vacant = nullptr;
  for (Member& member : members_) {
    if (member.phase != Phase::kVacant) continue;
    if (member.info.worker_id() == worker_id) return &member;  // its place of before
    if (vacant == nullptr) vacant = &member;
  }
  return vacant;
}

absl::StatusOr<v1::RegisterWorkerResponse> Cluster::Register(
    const v1::RegisterWorkerRequest& request) {
  SWITCHYARD_RETURN_IF_ERROR(CheckRegistration(request));
  SeeProcess(request);
  for (Member& member : members_) {
    if (member.phase == Phase::kVacant || member.info.worker_id() != request.worker_id()) continue;
    if (member.info.incarnation() != request.incarnation()) {
      return absl::AlreadyExistsError(
          ToAbsl(fmt::format("a worker of this name is in the group: worker_id {}, pid {}",
                             request.worker_id(), member.info.pid())));
    }
    // The process has noticed the end of its session before we have.
    Lose(member, Unavailable("registers again"), /*is_stale_process=*/false);
    if (state_ == GroupState::kStopped) return Unavailable("the group has ended");
  }
  Member* const place = FindPlace(request.worker_id());
  if (place == nullptr) {
    return ResourceExhausted("the group is complete: world_size {}", options_.world_size);
  }
  *place = Member();
  place->phase = Phase::kRegistered;
  place->info = request;
  place->lease_id = random_() | 1;  // 0 means none
  place->phase_since = place->last_heard = clock_.NowSeconds();
  v1::RegisterWorkerResponse response;
  response.set_lease_id(place->lease_id);
  response.set_epoch(epoch_);
  *response.mutable_heartbeat_interval() = DurationOf(options_.heartbeat_seconds);
  *response.mutable_lease_ttl() =
      DurationOf(options_.heartbeat_seconds * options_.num_missed + options_.suspect_seconds);
  response.set_rank(static_cast<uint32_t>(place - members_.data()));
  response.set_world_size(static_cast<uint32_t>(options_.world_size));
  return response;
}

void Cluster::SeeProcess(const v1::RegisterWorkerRequest& info) {
  for (Process& process : processes_) {
    if (process.worker_id == info.worker_id() && process.pid == info.pid()) {
      process.last_seen = clock_.NowSeconds();
      process.was_member = true;
    }
  }
}

absl::Status Cluster::OpenSession(uint64_t lease_id, std::unique_ptr<WorkerStream> stream) {
  Member* const member = FindLease(lease_id);
  if (member == nullptr) return NotFound("no such lease, or it has ended: lease_id");
  if (is_draining_) return Unavailable("the group is ending");
  if (member->stream != nullptr) {
    return absl::AlreadyExistsError("the lease has a session: lease_id");
  }
  BeginEpoch();
  const double now = clock_.NowSeconds();
  member->stream = std::move(stream);
  member->phase = Phase::kLoading;
  member->phase_since = member->last_heard = member->last_sent = now;
  member->configured_epoch = epoch_;
  v1::WorkerSessionResponse command;
  *command.mutable_configure() = options_.configure;
  SendCommand(*member, std::move(command));
  LogInfo("{}: joined as rank {} of {}, epoch {}", NameOf(member->info), member - members_.data(),
          options_.world_size, epoch_);
  return absl::OkStatus();
}

// ---- epochs -------------------------------------------------------------------------------------

void Cluster::BeginEpoch() {
  ++epoch_;
  plans_.Clear();
  held_plans_.clear();
  for (Member& member : members_) {
    if (member.phase != Phase::kLoading && member.phase != Phase::kEntering &&
        member.phase != Phase::kReady) {
      continue;
    }
    if (member.phase == Phase::kReady) {
      member.phase = Phase::kEntering;
      member.phase_since = clock_.NowSeconds();
    }
    v1::WorkerSessionResponse command;
    *command.mutable_begin_epoch()->mutable_sizes() = options_.configure.sizes();
    SendCommand(member, std::move(command));
  }
}

bool Cluster::AnyLeaves() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.phase != Phase::kVacant && member.is_leaving;
  });
}

void Cluster::TryServe() {
  const bool complete = std::all_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.phase == Phase::kReady;
  });
  if (!complete || AnyLeaves()) return;
  SWITCHYARD_CHECK(state_ != GroupState::kServing);  // it would have members that are not ready
  state_ = GroupState::kServing;
  step_since_ = clock_.NowSeconds();
  LogInfo("workers ready: {}, epoch {}", options_.world_size, epoch_);
  events_.OnReady(epoch_);
}

void Cluster::Lose(Member& member, const absl::Status& status, bool is_stale_process) {
  const absl::Status lost = Unavailable("{} is lost: {}", NameOf(member.info), Message(status));
  const bool had_session = member.stream != nullptr;
  const v1::RegisterWorkerRequest info = member.info;
  member.phase = Phase::kVacant;
  SeeProcess(info);
  if (had_session) {
    Log(member.is_told_to_go ? LogLevel::kInfo : LogLevel::kWarning, "{}", Message(lost));
    ++num_losses_;
    // The worker's mistake, the end that it was told of, or a group that goes on without it.
    member.stream->Close(absl::IsInvalidArgument(status)
                             ? absl::InvalidArgumentError(lost.message())
                         : member.is_told_to_go ? absl::OkStatus()
                                                : absl::AbortedError(lost.message()));
    member.stream.reset();
    BeginEpoch();
  }
  if (is_stale_process) events_.OnStaleProcess(info.worker_id(), info.pid());
  if (state_ == GroupState::kServing) LoseGroup(lost, /*returns=*/true);
}

void Cluster::LoseGroup(const absl::Status& status, bool returns) {
  state_ = returns ? GroupState::kReconfiguring : GroupState::kStopped;
  events_.OnLost(status, returns);
}

void Cluster::OnProcessStart(const std::string& worker_id, uint32_t pid) {
  processes_.push_back({.worker_id = worker_id, .pid = pid, .last_seen = clock_.NowSeconds()});
}

void Cluster::OnProcessExit(const std::string& worker_id, uint32_t pid, const absl::Status& status,
                            bool returns) {
  const auto process = std::find_if(processes_.begin(), processes_.end(), [&](const Process& p) {
    return p.worker_id == worker_id && p.pid == pid;
  });
  const bool was_member = process != processes_.end() && process->was_member;
  if (process != processes_.end()) processes_.erase(process);
  if (state_ == GroupState::kStopped) return;
  if (!returns) return Fail(status);
  for (Member& member : members_) {
    if (member.phase == Phase::kVacant || member.info.worker_id() != worker_id ||
        member.info.pid() != pid) {
      continue;
    }
    return Lose(member, status, /*is_stale_process=*/false);
  }
  // Of a member the end of its session was told before. Whoever ends without ever having been one
  // may do so again and again.
  if (!was_member) LogWarning("{}", Message(status));
}

void Cluster::Drain(double seconds) {
  is_draining_ = true;
  const double now = clock_.NowSeconds();
  const bool was_serving = state_ == GroupState::kServing && !AnyLeaves();
  for (Member& member : members_) {
    if (member.stream == nullptr || member.is_told_to_go) continue;
    member.is_leaving = member.is_told_to_go = true;
    member.leave_by = now + seconds;
    v1::WorkerSessionResponse command;
    *command.mutable_drain()->mutable_deadline() = DurationOf(seconds);
    SendCommand(member, std::move(command));
  }
  if (was_serving) events_.OnLeaving();
}

void Cluster::Fail(const absl::Status& status) {
  if (state_ == GroupState::kStopped) return;
  LoseGroup(status, /*returns=*/false);
  Stop(status);
}

void Cluster::Stop(const absl::Status& status) {
  state_ = GroupState::kStopped;
  plans_.Clear();
  held_plans_.clear();
  for (Member& member : members_) {
    member.phase = Phase::kVacant;
    if (member.stream == nullptr) continue;
    member.stream->Close(status);
    member.stream.reset();
  }
}

void Cluster::OnSessionClosed(uint64_t lease_id, const absl::Status& status) {
  Member* const member = FindLease(lease_id);
  if (member == nullptr || member->stream == nullptr) return;
  // A process that was told to go has done so.
  // A silent one has not ended it: the connection was given up for want of an answer.
  Lose(*member, member->is_told_to_go ? Unavailable("has left") : status,
       /*is_stale_process=*/member->suspect_since.has_value());
}

// ---- messages -----------------------------------------------------------------------------------

void Cluster::SendCommand(Member& member, v1::WorkerSessionResponse command) {
  command.set_epoch(epoch_);
  command.set_command_id(++member.last_command);
  member.stream->Send(std::move(command));
}

bool Cluster::IsStale(uint64_t epoch) {
  if (epoch == epoch_) return false;
  ++num_stale_messages_;
  return true;
}

void Cluster::OnMessage(uint64_t lease_id, const v1::WorkerSessionRequest& message) {
  SkipPause(clock_.NowSeconds());  // before a step is measured by it
  Member* const member = FindLease(lease_id);
  if (member == nullptr || member->stream == nullptr) {
    ++num_stale_messages_;
    return;
  }
  absl::Status status = CheckEnvelope(*member, message);
  if (status.ok()) {
    member->last_heard = clock_.NowSeconds();
    status = HandleMessage(*member, message);
  }
  if (status.ok()) return;
  ++num_faults_;
  // Whatever is wrong with that process, it is better started anew.
  Lose(*member, WithContext(status, "sent what it may not"), /*is_stale_process=*/true);
}

absl::Status Cluster::CheckEnvelope(const Member& member,
                                    const v1::WorkerSessionRequest& message) const {
  if (message.lease_id() != member.lease_id) {
    return InvalidArgument("message names another lease: lease_id");
  }
  if (message.epoch() > epoch_) {
    return InvalidArgument("epoch has not begun: epoch, got: {}, present: {}", message.epoch(),
                           epoch_);
  }
  if (message.acknowledged_command_id() > member.last_command) {
    return InvalidArgument("command was never sent: acknowledged_command_id, got: {}, last: {}",
                           message.acknowledged_command_id(), member.last_command);
  }
  return absl::OkStatus();
}

absl::Status Cluster::HandleMessage(Member& member, const v1::WorkerSessionRequest& message) {
  switch (message.message_case()) {
    case v1::WorkerSessionRequest::kHeartbeat:
      return HandleHeartbeat(member, message.heartbeat());
    case v1::WorkerSessionRequest::kShardProgress:
      return HandleProgress(member, message.shard_progress());
    case v1::WorkerSessionRequest::kFault:
      Lose(member, StatusOfFault(message.fault()), /*is_stale_process=*/false);
      return absl::OkStatus();
    case v1::WorkerSessionRequest::kShardReady:
      return HandleReady(member, message.epoch(), message.shard_ready());
    case v1::WorkerSessionRequest::kEpochEntered:
      return IsStale(message.epoch()) ? absl::OkStatus() : HandleEntered(member);
    case v1::WorkerSessionRequest::kStepResult:
      return IsStale(message.epoch()) ? absl::OkStatus()
                                      : HandleResult(member, message.step_result());
    case v1::WorkerSessionRequest::MESSAGE_NOT_SET:
      break;
  }
  return InvalidArgument("message is empty: message");
}

absl::Status Cluster::HandleHeartbeat(Member& member, const v1::Heartbeat& heartbeat) {
  if (heartbeat.sequence_number() <= member.last_heartbeat) {
    return InvalidArgument("heartbeats must grow: sequence_number, got: {}, last: {}",
                           heartbeat.sequence_number(), member.last_heartbeat);
  }
  member.last_heartbeat = heartbeat.sequence_number();
  member.heartbeat = heartbeat;
  if (heartbeat.state() == v1::WORKER_STATE_DRAINING && !member.is_leaving) {
    const bool is_first = !AnyLeaves();
    member.is_leaving = true;
    LogInfo("{}: wants to leave", NameOf(member.info));
    if (state_ == GroupState::kServing && is_first) events_.OnLeaving();
  }
  return absl::OkStatus();
}

absl::Status Cluster::HandleProgress(Member& member, const v1::ShardProgress& progress) {
  if (member.phase != Phase::kLoading) return InvalidArgument("nothing is loading: shard_progress");
  if (progress.done_bytes() > progress.total_bytes() ||
      progress.done_bytes() < member.progress.done_bytes()) {
    return InvalidArgument("progress is out of order: shard_progress, got: {} of {}, last: {}",
                           progress.done_bytes(), progress.total_bytes(),
                           member.progress.done_bytes());
  }
  if (progress.done_bytes() > member.progress.done_bytes()) {
    member.phase_since = clock_.NowSeconds();
  }
  member.progress = progress;
  return absl::OkStatus();
}

absl::Status Cluster::HandleReady(Member& member, uint64_t epoch, const v1::ShardReady& ready) {
  if (member.phase != Phase::kLoading || epoch != member.configured_epoch) {
    return InvalidArgument("nothing was to be loaded: shard_ready");
  }
  member.ready = ready;
  member.ready.set_device(OneLine(ready.device()));
  member.phase_since = clock_.NowSeconds();
  // The group may have gone on while it loaded; the answer to BeginEpoch follows then.
  member.phase = IsStale(epoch) ? Phase::kEntering : Phase::kReady;
  LogInfo("{}: loaded, {}", NameOf(member.info), member.ready.device());
  TryServe();
  return absl::OkStatus();
}

absl::Status Cluster::HandleEntered(Member& member) {
  if (member.phase != Phase::kEntering) {
    return InvalidArgument("no epoch was to be entered: epoch_entered");
  }
  member.phase = Phase::kReady;
  TryServe();
  return absl::OkStatus();
}

absl::Status Cluster::HandleResult(Member& member, const v1::StepResult& result) {
  if (&member != &lead()) return InvalidArgument("rank does not lead: step_result");
  if (!result.error().empty()) {
    Lose(member, Internal("step failed: {}", OneLine(result.error())), /*is_stale_process=*/false);
    return absl::OkStatus();
  }
  const auto rows = static_cast<double>(plans_.next_rows());
  SWITCHYARD_RETURN_IF_ERROR(plans_.Accept(result));
  const double now = clock_.NowSeconds();
  if (rows > 0) {  // a step without rows says nothing about others
    slowest_step_seconds_ = std::max(slowest_step_seconds_, now - step_since_);
    slowest_row_seconds_ = std::max(slowest_row_seconds_, (now - step_since_) / rows);
  }
  step_since_ = now;
  events_.OnResult(result);
  return absl::OkStatus();
}

// ---- plans --------------------------------------------------------------------------------------

absl::Status Cluster::Submit(v1::StepPlan plan) {
  if (state_ != GroupState::kServing || plan.epoch() != epoch_) return absl::OkStatus();
  held_plans_.push_back(std::move(plan));
  return SendHeldPlans();
}

absl::Status Cluster::SendHeldPlans() {
  while (!held_plans_.empty() && !lead().suspect_since) {
    v1::WorkerSessionResponse command;
    *command.mutable_step_plan() = std::move(held_plans_.front());
    held_plans_.pop_front();
    if (plans_.empty()) step_since_ = clock_.NowSeconds();
    SWITCHYARD_RETURN_IF_ERROR(plans_.Add(command.step_plan()));
    SendCommand(lead(), std::move(command));
  }
  return absl::OkStatus();
}

// ---- time ---------------------------------------------------------------------------------------

void Cluster::SkipPause(double now) {
  // Who was not running itself (stopped, swapped out) has heard nothing: that says nothing about
  // others.
  const double pause = last_look_ ? now - *last_look_ : 0;
  last_look_ = now;
  if (pause <= 2 * options_.heartbeat_seconds) return;
  // What has happened since then is not in the future.
  const auto skip = [&](double& time) { time = std::min(time + pause, now); };
  skip(step_since_);
  for (Process& process : processes_) skip(process.last_seen);
  for (Member& member : members_) {
    skip(member.phase_since);
    skip(member.last_heard);
    if (member.suspect_since) skip(*member.suspect_since);
  }
}

void Cluster::Tick() {
  const double now = clock_.NowSeconds();
  SkipPause(now);
  for (Member& member : members_) {
    if (state_ == GroupState::kStopped) return;
    if (member.phase != Phase::kVacant) CheckMember(member, now);
  }
  CheckProcesses(now);
}

void Cluster::CheckProcesses(double now) {
  for (Process& process : processes_) {
    const bool is_member = std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
      return member.phase != Phase::kVacant && member.info.worker_id() == process.worker_id &&
             member.info.pid() == process.pid;
    });
    if (is_member || now - process.last_seen <= options_.open_seconds) continue;
    process.last_seen = now;  // once, should it not end at once
    events_.OnStaleProcess(process.worker_id, process.pid);
  }
}

void Cluster::CheckMember(Member& member, double now) {
  const double in_phase = now - member.phase_since;
  if (member.phase == Phase::kRegistered) {
    if (in_phase > options_.open_seconds) {
      Lose(member, Unavailable("opened no session"), /*is_stale_process=*/true);
    }
    return;
  }
  if (member.phase == Phase::kLoading && in_phase > options_.load_seconds) {
    return Lose(member, Unavailable("load makes no progress for {} s", options_.load_seconds),
                true);
  }
  if (member.phase == Phase::kEntering &&
      in_phase > std::max(kEnterSeconds, options_.step_factor * slowest_step_seconds_)) {
    return Lose(member, Unavailable("does not enter the epoch"), true);
  }
  CheckSuspicion(member, now);
  if (member.phase == Phase::kVacant) return;
  if (now - member.last_sent >= options_.heartbeat_seconds) {
    member.last_sent = now;
    v1::WorkerSessionResponse message;
    message.set_epoch(epoch_);
    message.mutable_heartbeat()->set_acknowledged_sequence_number(member.last_heartbeat);
    member.stream->Send(std::move(message));
  }
  if (member.is_told_to_go) {
    if (now < member.leave_by) return;
    return Lose(member, Unavailable("did not leave in time"), /*is_stale_process=*/true);
  }
  if (!member.is_leaving) return;
  const bool runs =
      state_ == GroupState::kServing &&
      (!plans_.empty() || !held_plans_.empty() || now - step_since_ < options_.drained_seconds);
  if (runs) return;
  member.is_told_to_go = true;
  member.leave_by = now + kGoSeconds;
  v1::WorkerSessionResponse command;
  command.mutable_shutdown()->set_reason("it wanted to leave, and nothing runs any more");
  SendCommand(member, std::move(command));
}

double Cluster::SecondsForNextStep() const {
  if (slowest_step_seconds_ == 0) return options_.first_step_seconds;
  const double expected = std::max(slowest_step_seconds_,
                                   slowest_row_seconds_ * static_cast<double>(plans_.next_rows()));
  return std::max(options_.min_step_seconds, options_.step_factor * expected);
}

bool Cluster::IsStepOverdue(double now) const {
  return !plans_.empty() && now - step_since_ > SecondsForNextStep();
}

void Cluster::CheckSuspicion(Member& member, double now) {
  const bool is_silent = now - member.last_heard > options_.heartbeat_seconds * options_.num_missed;
  const bool is_stuck = &member == &lead() && IsStepOverdue(now);
  if (!is_silent && !is_stuck) {
    if (!member.suspect_since) return;
    member.suspect_since.reset();
    LogInfo("{}: is back", NameOf(member.info));
    const absl::Status status = SendHeldPlans();
    if (!status.ok()) Lose(member, status, /*is_stale_process=*/false);
    return;
  }
  if (!member.suspect_since) {
    member.suspect_since = now;
    LogWarning("{}: {}", NameOf(member.info), is_silent ? "is silent" : "step takes too long");
  } else if (now - *member.suspect_since > options_.suspect_seconds) {
    Lose(member, Unavailable("{}", is_silent ? "was silent for too long" : "step does not end"),
         /*is_stale_process=*/true);
  }
}

// ---- for operators ------------------------------------------------------------------------------

v1::WorkerState Cluster::StateOf(const Member& member) const {
  if (member.phase == Phase::kVacant) return v1::WORKER_STATE_DEAD;
  if (member.phase == Phase::kRegistered) return v1::WORKER_STATE_REGISTERING;
  if (member.suspect_since) return v1::WORKER_STATE_SUSPECT;
  if (member.is_leaving) return v1::WORKER_STATE_DRAINING;
  if (member.phase != Phase::kReady) return v1::WORKER_STATE_LOADING;
  const bool is_lead = &member == &members_.front();
  return is_lead && !plans_.empty() ? v1::WORKER_STATE_BUSY : v1::WORKER_STATE_READY;
}

ClusterStatus Cluster::status() const {
  ClusterStatus out;
  out.state = state_;
  out.epoch = epoch_;
  out.num_losses = num_losses_;
  out.num_stale_messages = num_stale_messages_;
  out.num_faults = num_faults_;
  const double now = clock_.NowSeconds();
  for (const Member& member : members_) {
    MemberStatus& status = out.members.emplace_back();
    status.state = StateOf(member);
    status.worker_id = member.info.worker_id();
    status.incarnation = member.info.incarnation();
    status.pid = member.info.pid();
    status.service_address = member.info.service_address();
    if (member.phase == Phase::kVacant) continue;
    status.heartbeat_age_seconds = std::max(0.0, now - member.last_heard);
    status.resident_bytes = member.heartbeat.resident_bytes();
    status.loaded_bytes = member.progress.done_bytes();
    status.total_bytes = member.progress.total_bytes();
    status.device = member.ready.device();
  }
  return out;
}

}  // namespace switchyard::coordinator
