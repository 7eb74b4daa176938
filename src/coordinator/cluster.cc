#include "coordinator/cluster.h"

#include <algorithm>
#include <utility>

#include <google/protobuf/util/time_util.h>

#include "base/check.h"
#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "placement/placement.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

constexpr double kFirstRetrySeconds = 0.1;  // from the second loss of links in a row on, doubling
constexpr double kMaxRetrySeconds = 5;

google::protobuf::Duration DurationOf(double seconds) {
  return google::protobuf::util::TimeUtil::MillisecondsToDuration(
      static_cast<int64_t>(seconds * 1000));
}

placement::v1::Placement PlacementOf(const ClusterOptions& options) {
  placement::v1::Placement placement = options.placement;
  if (placement.mode() == placement::v1::MODE_UNSPECIFIED) {
    placement.set_mode(placement::v1::MODE_SINGLE);
    placement.set_world_size(1);
  }
  return placement;
}

}  // namespace

Cluster::Cluster(const ClusterOptions& options, const Clock& clock, ClusterEvents& events)
    : options_(options),
      clock_(clock),
      events_(events),
      random_(options.lease_seed),
      group_id_(fmt::format("{:016x}", random_())),
      members_(PlacementOf(options).world_size()),
      placement_(PlacementOf(options)),
      plans_(options.configure.sizes(), options.vocab_size, options.step) {
  SWITCHYARD_CHECK(!members_.empty() && !options.configure.model_digest().empty());
  options_.placement = placement_;
  for (size_t i = 0; i < members_.size(); ++i) {
    members_[i].rank = static_cast<int>(i);
    members_[i].vacant_since = clock_.NowSeconds();
  }
}

const Cluster::Member& Cluster::lead() const {
  const int rank = placement::LeadRank(placement_);
  return *std::find_if(members_.begin(), members_.end(),
                       [&](const Member& member) { return member.rank == rank; });
}

bool Cluster::AllAre(Phase phase) const {
  return std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
    return member.rank < 0 || member.phase == phase;
  });
}

bool Cluster::AnyLeaves() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.rank >= 0 && member.phase != Phase::kVacant && member.is_leaving;
  });
}

bool Cluster::AnySuspect() const {
  return std::any_of(members_.begin(), members_.end(), [](const Member& member) {
    return member.rank >= 0 && member.phase != Phase::kVacant && member.suspect_since.has_value();
  });
}

// ---- joining ------------------------------------------------------------------------------------

Cluster::Member* Cluster::FindLease(uint64_t lease_id) {
  for (Member& member : members_) {
    if (member.phase != Phase::kVacant && member.lease_id == lease_id) return &member;
  }
  return nullptr;
}

bool Cluster::IsMember(const std::string& worker_id, uint32_t pid) const {
  return std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
    return member.phase != Phase::kVacant && member.info.worker_id() == worker_id &&
           member.info.pid() == pid;
  });
}

bool Cluster::IsKept(size_t place) const {
  return place < options_.worker_ids.size() && !options_.worker_ids[place].empty();
}

Cluster::Member* Cluster::FindPlace(const v1::RegisterWorkerRequest& request) {
  Member* wanted = nullptr;
  Member* unused = nullptr;
  Member* vacant = nullptr;
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (member.phase != Phase::kVacant) continue;
    if (member.info.worker_id() == request.worker_id()) return &member;  // its place of before
    if (IsKept(i)) {
      if (options_.worker_ids[i] == request.worker_id()) return &member;
      continue;
    }
    if (request.has_wanted_rank() && request.wanted_rank() == i) wanted = &member;
    // Others may come back to theirs.
    if (unused == nullptr && member.info.worker_id().empty()) unused = &member;
    if (vacant == nullptr) vacant = &member;
  }
  return wanted != nullptr ? wanted : unused != nullptr ? unused : vacant;
}

absl::StatusOr<v1::RegisterWorkerResponse> Cluster::Register(
    const v1::RegisterWorkerRequest& request) {
  if (state_ == GroupState::kStopped) return Unavailable("the group has ended");
  if (is_draining_) return Unavailable("the group is ending");
  SWITCHYARD_RETURN_IF_ERROR(CheckRegistration(request, options_.configure));
  const double now = clock_.NowSeconds();
  processes_.See(request.worker_id(), request.pid(), now);
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
  Member* const place = FindPlace(request);
  if (place == nullptr) {
    return ResourceExhausted("the group is complete: world_size {}", members_.size());
  }
  Member member;
  member.rank = place->rank;
  member.vacant_since = place->vacant_since;
  member.phase = Phase::kRegistered;
  member.info = request;
  member.lease_id = random_() | 1;  // 0 means none
  member.phase_since = member.last_heard = now;
  *place = std::move(member);
  v1::RegisterWorkerResponse response;
  response.set_lease_id(place->lease_id);
  response.set_epoch(epoch_);
  *response.mutable_heartbeat_interval() = DurationOf(options_.heartbeat_seconds);
  *response.mutable_lease_ttl() =
      DurationOf(options_.heartbeat_seconds * options_.num_missed + options_.suspect_seconds);
  response.set_rank(static_cast<uint32_t>(place - members_.data()));
  response.set_world_size(static_cast<uint32_t>(members_.size()));
  return response;
}

absl::Status Cluster::OpenSession(uint64_t lease_id, std::unique_ptr<WorkerStream> stream) {
  Member* const member = FindLease(lease_id);
  if (member == nullptr) return NotFound("no such lease, or it has ended: lease_id");
  if (is_draining_) return Unavailable("the group is ending");
  if (member->stream != nullptr) {
    return absl::AlreadyExistsError("the lease has a session: lease_id");
  }
  const double now = clock_.NowSeconds();
  member->stream = std::move(stream);
  member->phase = Phase::kSpare;
  member->phase_since = member->last_heard = member->last_sent = now;
  member->needs_share = true;
  was_replan_refused_ = false;
  if (member->rank >= 0) {
    BeginEpoch();
  } else {
    Regroup();
  }
  if (member->rank >= 0) {
    LogInfo("{}: joined as rank {} of {}, epoch {}", NameOf(member->info), member->rank,
            world_size(), epoch_);
  } else {
    LogInfo("{}: joined, and waits: the group goes on with {} workers", NameOf(member->info),
            world_size());
  }
  return absl::OkStatus();
}

// ---- epochs -------------------------------------------------------------------------------------

void Cluster::SendConfigure(Member& member) {
  if (member.num_loads++ == 0) member.progress.Clear();
  member.needs_share = false;
  member.phase = Phase::kLoading;
  member.phase_since = clock_.NowSeconds();
  member.configured_epoch = epoch_;
  v1::WorkerSessionResponse command;
  v1::Configure& configure = *command.mutable_configure();
  configure = options_.configure;
  *configure.mutable_placement() = placement_;
  configure.set_rank(static_cast<uint32_t>(member.rank));
  SendCommand(member, std::move(command));
}

void Cluster::BeginEpoch() {
  ++epoch_;
  plans_.Clear();
  rendezvous_.Begin(world_size());
  for (Member& member : members_) {
    if (member.rank < 0 || member.stream == nullptr) continue;
    if (member.needs_share) {
      SendConfigure(member);
      continue;
    }
    if (member.phase != Phase::kLoading && member.phase != Phase::kEntering) {
      const double now = clock_.NowSeconds();
      // Not every way of linking up can be broken off.
      const double free_at =
          member.phase == Phase::kForming ? member.phase_since + options_.form_seconds : now;
      member.phase = Phase::kEntering;
      member.phase_since = std::max(now, free_at);
    }
    v1::WorkerSessionResponse command;
    *command.mutable_begin_epoch()->mutable_sizes() = options_.configure.sizes();
    SendCommand(member, std::move(command));
  }
}

void Cluster::Advance() {
  if (state_ == GroupState::kServing || state_ == GroupState::kStopped || AnyLeaves()) return;
  if (AllAre(Phase::kEntered)) {
    if (world_size() == 1) {
      lead().phase = Phase::kReady;
    } else if (clock_.NowSeconds() >= form_not_before_) {
      SendFormGroup();
    }
  }
  if (!AllAre(Phase::kReady)) return;
  state_ = GroupState::kServing;
  has_served_ = true;
  plans_.Begin(clock_.NowSeconds());
  LogInfo("workers ready: {}, epoch {}{}", placement::Describe(placement_), epoch_,
          placement_.world_size() < members_.size()
              ? fmt::format(", {} of them missing", members_.size() - placement_.world_size())
              : "");
  events_.OnReady(epoch_);
}

std::string Cluster::BackendOfMembers() const {
  if (!options_.backend.empty()) return options_.backend;
  const bool is_one_host = std::all_of(members_.begin(), members_.end(), [&](const Member& member) {
    return member.rank < 0 || (member.info.host() == lead().info.host() &&
                               member.info.boot_id() == lead().info.boot_id());
  });
  return is_one_host ? "shm" : "ucx";
}

void Cluster::SendFormGroup() {
  v1::FormGroup form;
  form.set_group_id(group_id_);
  form.set_backend(BackendOfMembers());
  *form.mutable_timeout() = DurationOf(options_.form_seconds);
  *form.mutable_operation_timeout() = DurationOf(
      plans_.SecondsForStep(static_cast<int64_t>(options_.configure.sizes().max_step_rows())));
  for (Member& member : members_) {
    if (member.rank < 0) continue;
    member.phase = Phase::kForming;
    member.phase_since = clock_.NowSeconds();
    v1::WorkerSessionResponse command;
    *command.mutable_form_group() = form;
    SendCommand(member, std::move(command));
  }
}

// ---- losses -------------------------------------------------------------------------------------

void Cluster::Lose(Member& member, const absl::Status& status, bool is_stale_process) {
  const absl::Status lost = Unavailable("{} is lost: {}", NameOf(member.info), Message(status));
  const bool had_session = member.stream != nullptr;
  const v1::RegisterWorkerRequest info = member.info;
  // A process that ends before it can do anything is as good as none.
  if (member.phase >= Phase::kEntered) member.vacant_since = clock_.NowSeconds();
  member.phase = Phase::kVacant;
  processes_.See(info.worker_id(), info.pid(), clock_.NowSeconds());
  was_replan_refused_ = false;
  if (had_session) {
    Log(member.is_told_to_go ? LogLevel::kInfo : LogLevel::kWarning, "{}", Message(lost));
    ++num_losses_;
    num_link_losses_in_a_row_ = 0;  // the links to it cannot have worked
    // The worker's mistake, the end that it was told of, or a group that goes on without it.
    member.stream->Close(absl::IsInvalidArgument(status)
                             ? absl::InvalidArgumentError(lost.message())
                         : member.is_told_to_go ? absl::OkStatus()
                                                : absl::AbortedError(lost.message()));
    member.stream.reset();
    if (member.rank >= 0) BeginEpoch();
  }
  if (is_stale_process) events_.OnStaleProcess(info.worker_id(), info.pid());
  if (state_ == GroupState::kServing && member.rank >= 0) LoseGroup(lost, /*returns=*/true);
}

void Cluster::LoseLinks(const absl::Status& status) {
  const double now = clock_.NowSeconds();
  ++num_link_losses_;
  if (++num_link_losses_in_a_row_ == 1) first_link_loss_ = now;
  LogWarning("workers have lost each other, epoch {}: {}", epoch_, Message(status));
  if (num_link_losses_in_a_row_ >= options_.max_group_losses &&
      now - first_link_loss_ >= options_.group_loss_seconds) {
    return Fail(
        Unavailable("workers cannot link up: {} attempts failed in {:.0f} s, the last one: "
                    "{}",
                    num_link_losses_in_a_row_, now - first_link_loss_, Message(status)));
  }
  const int num_before = num_link_losses_in_a_row_ - 1;
  double wait = num_before == 0 ? 0 : kFirstRetrySeconds;
  for (int i = 1; i < num_before && wait < kMaxRetrySeconds; ++i) wait *= 2;
  form_not_before_ = now + std::min(wait, kMaxRetrySeconds);
  BeginEpoch();
  if (state_ == GroupState::kServing) LoseGroup(status, /*returns=*/true);
}

void Cluster::LoseGroup(const absl::Status& status, bool returns) {
  state_ = returns ? GroupState::kReconfiguring : GroupState::kStopped;
  events_.OnLost(status, returns);
}

bool Cluster::Regroup() {
  std::vector<Member*> present;
  for (Member& member : members_) {
    if (member.stream != nullptr && !member.is_leaving) present.push_back(&member);
  }
  absl::StatusOr<placement::v1::Placement> placement = options_.placement;
  size_t num_ranks = present.size();
  for (; num_ranks > 0; --num_ranks) {
    if (num_ranks < members_.size()) placement = options_.replan(static_cast<int>(num_ranks));
    if (placement.ok()) break;
    LogWarning("{} workers cannot go on alone: {}", num_ranks, Message(placement.status()));
  }
  if (num_ranks == 0) return false;
  placement_ = *std::move(placement);
  for (Member& member : members_) {
    member.rank = -1;
    if (member.stream != nullptr) member.phase = Phase::kSpare;
  }
  for (size_t i = 0; i < num_ranks; ++i) {
    present[i]->rank = static_cast<int>(i);
    present[i]->needs_share = true;
  }
  LogWarning("the group has another placement: {} ({} of {} workers are there)",
             placement::Describe(placement_), present.size(), members_.size());
  BeginEpoch();
  if (state_ == GroupState::kServing) {
    LoseGroup(Unavailable("the group has another placement"), /*returns=*/true);
  }
  return true;
}

void Cluster::OnProcessStart(const std::string& worker_id, uint32_t pid) {
  processes_.Start(worker_id, pid, clock_.NowSeconds());
}

void Cluster::OnProcessExit(const std::string& worker_id, uint32_t pid, const absl::Status& status,
                            bool returns) {
  const bool was_member = processes_.End(worker_id, pid);
  if (state_ == GroupState::kStopped) return;
  const bool goes_on = returns || (has_served_ && options_.replan != nullptr);
  if (!goes_on) return Fail(status);
  bool is_told = was_member;  // of a member the end of its session was told before
  for (Member& member : members_) {
    if (member.phase == Phase::kVacant || member.info.worker_id() != worker_id ||
        member.info.pid() != pid) {
      continue;
    }
    Lose(member, status, /*is_stale_process=*/false);
    is_told = true;
  }
  // Whoever ends without ever having been one may do so again and again.
  if (!is_told) LogWarning("{}", Message(status));
  if (!returns && !Regroup()) Fail(status);
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

// ---- plans --------------------------------------------------------------------------------------

void Cluster::SendCommand(Member& member, v1::WorkerSessionResponse command) {
  command.set_epoch(epoch_);
  command.set_command_id(++member.last_command);
  member.stream->Send(std::move(command));
}

absl::Status Cluster::Submit(v1::StepPlan plan) {
  if (state_ != GroupState::kServing || plan.epoch() != epoch_) return absl::OkStatus();
  plans_.Hold(std::move(plan));
  return SendHeldPlans();
}

absl::Status Cluster::SendHeldPlans() {
  while (state_ == GroupState::kServing && !AnySuspect()) {
    SWITCHYARD_ASSIGN_OR_RETURN(auto plan, plans_.Next(clock_.NowSeconds()));
    if (!plan) break;
    v1::WorkerSessionResponse command;
    *command.mutable_step_plan() = *std::move(plan);
    SendCommand(lead(), std::move(command));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::coordinator
