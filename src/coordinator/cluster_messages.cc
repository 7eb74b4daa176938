// The part of Cluster that takes messages of workers.
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/cluster.h"

namespace switchyard::coordinator {

namespace v1 = switchyard::worker::v1;

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
    case v1::WorkerSessionRequest::kResidency:
      return HandleResidency(member, message.residency());
    case v1::WorkerSessionRequest::kShardProgress:
      return HandleProgress(member, message.shard_progress());
    case v1::WorkerSessionRequest::kFault:
      Lose(member, StatusFromWorker(message.fault().code(), message.fault().message()),
           /*is_stale_process=*/false);
      return absl::OkStatus();
    case v1::WorkerSessionRequest::kShardReady:
      return HandleReady(member, message.epoch(), message.shard_ready());
    case v1::WorkerSessionRequest::MESSAGE_NOT_SET:
      return InvalidArgument("message is empty: message");
    default:
      return IsStale(message.epoch()) ? absl::OkStatus() : HandleEpochMessage(member, message);
  }
}

absl::Status Cluster::HandleEpochMessage(Member& member, const v1::WorkerSessionRequest& message) {
  switch (message.message_case()) {
    case v1::WorkerSessionRequest::kEpochEntered:
      return HandleEntered(member);
    case v1::WorkerSessionRequest::kRendezvousEntry:
      return HandleRendezvous(member, message.rendezvous_entry());
    case v1::WorkerSessionRequest::kGroupFormed:
      return HandleFormed(member);
    case v1::WorkerSessionRequest::kGroupLost:
      return HandleGroupLost(member, message.group_lost());
    case v1::WorkerSessionRequest::kStepResult:
      return HandleResult(member, message.step_result());
    default:
      return InvalidArgument("message is unknown: message, got: {}",
                             static_cast<int>(message.message_case()));
  }
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

absl::Status Cluster::HandleResidency(Member& member, const v1::Residency& residency) {
  const uint64_t num_experts = uint64_t{residency.num_layers()} * residency.num_experts();
  if (residency.states().size() != num_experts ||
      static_cast<uint64_t>(residency.uses_size()) != num_experts ||
      static_cast<uint32_t>(residency.layers_size()) != residency.num_layers()) {
    return InvalidArgument(
        "lists have other lengths than experts: residency, states: {}, uses: {}, layers: {}, "
        "wanted: {} x {}",
        residency.states().size(), residency.uses_size(), residency.layers_size(),
        residency.num_layers(), residency.num_experts());
  }
  member.residency = std::make_shared<v1::Residency>(residency);
  return absl::OkStatus();
}

absl::Status Cluster::HandleProgress(Member& member, const v1::ShardProgress& progress) {
  if (member.num_loads == 0) return InvalidArgument("nothing is loading: shard_progress");
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
  if (member.num_loads == 0) return InvalidArgument("nothing was to be loaded: shard_ready");
  --member.num_loads;
  if (member.phase != Phase::kLoading || member.num_loads > 0) {
    ++num_stale_messages_;  // a share that it has no more
    member.progress.Clear();
    return absl::OkStatus();
  }
  if (epoch != member.configured_epoch) {
    return InvalidArgument("another epoch was to be loaded for: shard_ready, got: {}, wanted: {}",
                           epoch, member.configured_epoch);
  }
  member.ready = ready;
  member.ready.set_device(OneLine(ready.device()));
  member.phase_since = clock_.NowSeconds();
  // The group may have gone on while it loaded; the answer to BeginEpoch follows then.
  member.phase = IsStale(epoch) ? Phase::kEntering : Phase::kEntered;
  LogInfo("{}: loaded, {}", NameOf(member.info), member.ready.device());
  Advance();
  return absl::OkStatus();
}

absl::Status Cluster::HandleEntered(Member& member) {
  if (member.phase != Phase::kEntering) {
    return InvalidArgument("no epoch was to be entered: epoch_entered");
  }
  member.phase = Phase::kEntered;
  Advance();
  return absl::OkStatus();
}

absl::Status Cluster::HandleRendezvous(Member& member, const v1::RendezvousEntry& entry) {
  if (member.phase != Phase::kForming) {
    return InvalidArgument("no group is being formed: rendezvous_entry");
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const bool is_complete, rendezvous_.Add(member.rank, entry));
  if (!is_complete) return absl::OkStatus();
  v1::WorkerSessionResponse command;
  *command.mutable_rendezvous_data() = rendezvous_.complete(entry.key());
  for (Member& other : members_) {
    if (other.rank >= 0) SendCommand(other, command);
  }
  return absl::OkStatus();
}

absl::Status Cluster::HandleFormed(Member& member) {
  if (member.phase != Phase::kForming) {
    return InvalidArgument("no group was to be formed: group_formed");
  }
  member.phase = Phase::kReady;
  Advance();
  return absl::OkStatus();
}

absl::Status Cluster::HandleGroupLost(Member& member, const v1::GroupLost& lost) {
  const bool had_links =
      member.phase == Phase::kForming || (member.phase == Phase::kReady && world_size() > 1);
  if (!had_links) return InvalidArgument("there was no group to be lost: group_lost");
  LoseLinks(WithContext(StatusFromWorker(lost.code(), lost.message()),
                        fmt::format("rank {}", member.rank)));
  return absl::OkStatus();
}

absl::Status Cluster::HandleResult(Member& member, const v1::StepResult& result) {
  if (&member != &lead()) return InvalidArgument("rank does not lead: step_result");
  if (!result.error().empty()) {
    Lose(member, Internal("step failed: {}", OneLine(result.error())), /*is_stale_process=*/false);
    return absl::OkStatus();
  }
  SWITCHYARD_RETURN_IF_ERROR(plans_.Accept(result, clock_.NowSeconds()));
  num_link_losses_in_a_row_ = 0;
  events_.OnResult(result);
  return absl::OkStatus();
}

}  // namespace switchyard::coordinator
