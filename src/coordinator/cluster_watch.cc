// The part of Cluster that looks at the clock, and at what operators ask for.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "coordinator/cluster.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

// What a worker that was told to go may take to end its process.
constexpr double kGoSeconds = 5;
// A survivor that has not entered a new epoch after this time and a step's is given up, and so is
// one that says nothing for so long after the time for forming a group.
constexpr double kEnterSeconds = 5;

}  // namespace

void Cluster::SkipPause(double now) {
  // Who was not running itself (stopped, swapped out) has heard nothing: that says nothing about
  // others.
  const double pause = last_look_ ? now - *last_look_ : 0;
  last_look_ = now;
  if (pause <= 2 * options_.heartbeat_seconds) return;
  // What has happened since then is not in the future.
  const auto skip = [&](double& time) { time = std::min(time + pause, now); };
  plans_.Skip(pause, now);
  processes_.Skip(pause, now);
  for (Member& member : members_) {
    skip(member.phase_since);
    skip(member.vacant_since);
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
  if (state_ == GroupState::kStopped) return;
  CheckVacancies(now);
  Advance();  // it may have had to wait
  processes_.Check(
      now, options_.open_seconds,
      [&](const std::string& worker_id, uint32_t pid) { return IsMember(worker_id, pid); },
      [&](const std::string& worker_id, uint32_t pid) { events_.OnStaleProcess(worker_id, pid); });
}

void Cluster::CheckVacancies(double now) {
  if (options_.replan == nullptr || !has_served_ || is_draining_ || was_replan_refused_) return;
  const bool is_due = std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
    return member.rank >= 0 && member.phase == Phase::kVacant &&
           now - member.vacant_since > options_.replan_seconds;
  });
  if (is_due) was_replan_refused_ = !Regroup();
}

void Cluster::CheckMember(Member& member, double now) {
  CheckPhase(member, now);
  if (member.phase == Phase::kVacant || member.phase == Phase::kRegistered) return;
  CheckSuspicion(member, now);
  if (member.phase == Phase::kVacant) return;
  if (now - member.last_sent >= options_.heartbeat_seconds) {
    member.last_sent = now;
    v1::WorkerSessionResponse message;
    message.set_epoch(epoch_);
    message.mutable_heartbeat()->set_acknowledged_sequence_number(member.last_heartbeat);
    member.stream->Send(std::move(message));
  }
  CheckLeaving(member, now);
}

void Cluster::CheckPhase(Member& member, double now) {
  const double in_phase = now - member.phase_since;
  const auto lose = [&](const absl::Status& status) {
    Lose(member, status, /*is_stale_process=*/true);
  };
  switch (member.phase) {
    case Phase::kRegistered:
      if (in_phase > options_.open_seconds) lose(Unavailable("opened no session"));
      return;
    case Phase::kLoading:
      if (in_phase > options_.load_seconds) {
        lose(Unavailable("load makes no progress for {} s", options_.load_seconds));
      }
      return;
    case Phase::kEntering:
      if (in_phase >
          std::max(kEnterSeconds, options_.step.factor * plans_.slowest_step_seconds())) {
        lose(Unavailable("does not enter the epoch"));
      }
      return;
    case Phase::kForming:
      // Others would have said that they wait for somebody.
      if (in_phase > options_.form_seconds + kEnterSeconds) {
        lose(Unavailable("does not link up with the others"));
      }
      return;
    default:
      return;
  }
}

void Cluster::CheckLeaving(Member& member, double now) {
  if (member.is_told_to_go) {
    if (now < member.leave_by) return;
    return Lose(member, Unavailable("did not leave in time"), /*is_stale_process=*/true);
  }
  if (!member.is_leaving) return;
  const bool runs = state_ == GroupState::kServing && member.rank >= 0 &&
                    plans_.RanWithin(options_.drained_seconds, now);
  if (runs) return;
  member.is_told_to_go = true;
  member.leave_by = now + kGoSeconds;
  v1::WorkerSessionResponse command;
  command.mutable_shutdown()->set_reason("it wanted to leave, and nothing runs any more");
  SendCommand(member, std::move(command));
}

void Cluster::CheckSuspicion(Member& member, double now) {
  const bool is_silent = now - member.last_heard > options_.heartbeat_seconds * options_.num_missed;
  const bool is_stuck = &member == &lead() && plans_.IsOverdue(now);
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
    if (is_silent || world_size() == 1) {
      return Lose(member,
                  Unavailable("{}", is_silent ? "was silent for too long" : "step does not end"),
                  /*is_stale_process=*/true);
    }
    // The lead may wait for another rank; whoever hangs does not enter the next epoch.
    member.suspect_since.reset();
    LoseLinks(DeadlineExceeded("step does not end"));
  }
}

// ---- for operators ------------------------------------------------------------------------------

v1::WorkerState Cluster::StateOf(const Member& member) const {
  if (member.phase == Phase::kVacant) return v1::WORKER_STATE_DEAD;
  if (member.phase == Phase::kRegistered || member.phase == Phase::kSpare) {
    return v1::WORKER_STATE_REGISTERING;
  }
  if (member.suspect_since) return v1::WORKER_STATE_SUSPECT;
  if (member.is_leaving) return v1::WORKER_STATE_DRAINING;
  if (member.phase != Phase::kReady) return v1::WORKER_STATE_LOADING;
  return plans_.is_running() ? v1::WORKER_STATE_BUSY : v1::WORKER_STATE_READY;
}

ClusterStatus Cluster::status() const {
  ClusterStatus out;
  out.state = state_;
  out.epoch = epoch_;
  out.placement = placement_;
  out.is_degraded = placement_.world_size() < members_.size();
  out.num_losses = num_losses_;
  out.num_link_losses = num_link_losses_;
  out.num_stale_messages = num_stale_messages_;
  out.num_faults = num_faults_;
  const double now = clock_.NowSeconds();
  for (const Member& member : members_) {
    MemberStatus& status = out.members.emplace_back();
    status.state = StateOf(member);
    status.rank = member.rank;
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
    status.residency = member.residency;
  }
  return out;
}

}  // namespace switchyard::coordinator
