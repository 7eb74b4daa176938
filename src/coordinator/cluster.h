// Who is in the group of workers: registration, leases, epochs, heartbeats, loss.
//
// No gRPC and no threads: messages and a clock go in, messages and events come out, so that a test
// can play any order of things.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "switchyard/placement/v1/placement.pb.h"
#include "switchyard/worker/v1/session.pb.h"
#include "switchyard/worker/v1/step.pb.h"

#include "base/clock.h"
#include "coordinator/lead_plans.h"
#include "coordinator/process_watch.h"
#include "coordinator/rendezvous_book.h"
#include "coordinator/worker_registration.h"

namespace switchyard::coordinator {

struct ClusterOptions {
  // Who computes what once all places are taken; without a mode there is one place, and who has it
  // computes everything.
  switchyard::placement::v1::Placement placement;
  // What every member loads, but for its share. The digest must be set; an empty path means that
  // every worker brings its own file.
  switchyard::worker::v1::Configure configure;
  int64_t vocab_size = 0;
  uint64_t lease_seed = 0;  // of the random numbers that name leases and the group
  // By place: ids of workers that it is kept for, as their launcher numbers them. "", or what is
  // missing at the end: for any other.
  std::vector<std::string> worker_ids;
  // How ranks reach each other, "shm" or "ucx"; empty = by where they are.
  std::string backend;
  // Makes a placement for fewer workers, should some not come back; null = the group waits for
  // them. From within the cluster's methods: must not block.
  std::function<absl::StatusOr<switchyard::placement::v1::Placement>(int world_size)> replan;

  double heartbeat_seconds = 0.5;  // between signs of life, in both directions
  int num_missed = 3;              // heartbeats without which a worker is under suspicion
  double suspect_seconds = 3.5;    // from there to its loss
  double open_seconds = 10;        // from a process's start to registration, and to its session
  double load_seconds = 60;        // without progress of a load
  StepLimits step;
  double form_seconds = 10;  // for ranks to link up
  // Attempts to form or keep a group that fail one after the other, without a step or a loss of a
  // member in between, wait longer and longer. The group is given up after so many of them, if
  // they have taken so long.
  int max_group_losses = 8;
  double group_loss_seconds = 60;
  double replan_seconds = 30;  // without a member, until the others go on without it
  // The engine starts nothing on a worker that leaves; when that one has been without a plan for
  // this long, nothing runs any more.
  double drained_seconds = 0.25;
};

// The coordinator's end of a session. Destroyed after Close().
class WorkerStream {
 public:
  virtual ~WorkerStream() = default;
  // Queues a message; must not block.
  virtual void Send(switchyard::worker::v1::WorkerSessionResponse message) = 0;
  // Ends the session; what is queued may be lost. The last call.
  virtual void Close(const absl::Status& status) = 0;
};

// What a cluster tells. Calls come from within its methods and must neither block nor call back.
class ClusterEvents {
 public:
  virtual ~ClusterEvents() = default;
  // All members can take plans of this epoch and hold no state.
  virtual void OnReady(uint64_t epoch) = 0;
  // A result of the current epoch that fits its plan.
  virtual void OnResult(const switchyard::worker::v1::StepResult& result) = 0;
  // A member of the group, which is ready, wants to leave: what runs goes on, but nothing should be
  // started any more. The group is lost when the member has gone.
  virtual void OnLeaving() = 0;
  // The group that was ready is so no more; what was under way is lost. Or, with `returns` false,
  // it will never be: then it may come without an OnReady() before it, and it is the last event.
  virtual void OnLost(const absl::Status& status, bool returns) = 0;
  // The process was given up without having ended: whoever started it should kill it.
  virtual void OnStaleProcess(const std::string& worker_id, uint32_t pid) = 0;
};

enum class GroupState {
  kForming,        // has never been complete
  kServing,        // all members can take plans
  kReconfiguring,  // a member or a link was lost
  kStopped,        // for good
};

// One place in the group, as operators see it.
struct MemberStatus {
  switchyard::worker::v1::WorkerState state = switchyard::worker::v1::WORKER_STATE_DEAD;
  int rank = -1;          // in the present placement; -1 = it has no part in it
  std::string worker_id;  // of the last worker in this place; "" = there was none yet
  uint64_t incarnation = 0;
  uint32_t pid = 0;
  double heartbeat_age_seconds = 0;  // since its last sign of life
  uint64_t resident_bytes = 0;
  uint64_t loaded_bytes = 0, total_bytes = 0;  // of a load
  std::string device;                          // in words, once loaded
  std::string service_address;
  // Where its experts are; null until it has told.
  std::shared_ptr<const switchyard::worker::v1::Residency> residency;
};

struct ClusterStatus {
  GroupState state = GroupState::kForming;
  uint64_t epoch = 0;
  std::vector<MemberStatus> members;               // by place
  switchyard::placement::v1::Placement placement;  // the present one
  bool is_degraded = false;                        // it goes without some places
  int64_t num_losses = 0;                          // of members that had a session
  int64_t num_link_losses = 0;                     // of groups whose members were well
  int64_t num_stale_messages = 0;                  // of an older epoch or an ended lease; dropped
  int64_t num_faults = 0;  // messages that were not allowed; each ended a session
};

// The epoch grows with every change of membership, placement or links. Members enter it by loading
// (Configure) or by forgetting what they had (BeginEpoch); once all have, they link up (FormGroup,
// more than one only), and once all have, the group serves. A member is lost when its session or
// process ends, when it is silent or stuck for too long, or when it says what it may not; its lease
// is void from then on, whatever it still sends. A group that was lost by a link between members
// who are well forms again at once.
//
// A place is for one worker, and its rank as long as all places are taken. If a place stays empty
// and there is a `replan`, the others get ranks in a smaller placement, until it is taken again.
//
// Signs of life, progress and faults belong to the lease; the rest to the epoch.
// Threads: one at a time.
class Cluster {
 public:
  // The arguments must outlive the object.
  Cluster(const ClusterOptions& options, const Clock& clock, ClusterEvents& events);

  // Errors: those of CheckRegistration(), kAlreadyExists (a live worker has this id with another
  //         incarnation), kResourceExhausted (the group is complete), kUnavailable (stopped).
  absl::StatusOr<switchyard::worker::v1::RegisterWorkerResponse> Register(
      const switchyard::worker::v1::RegisterWorkerRequest& request);

  // Errors: kNotFound (no such lease), kAlreadyExists (it has a session). `stream` is dropped then.
  absl::Status OpenSession(uint64_t lease_id, std::unique_ptr<WorkerStream> stream);

  // A message that came on the session of `lease_id`. Void leases are allowed.
  void OnMessage(uint64_t lease_id, const switchyard::worker::v1::WorkerSessionRequest& message);

  // The session's stream has ended by itself.
  void OnSessionClosed(uint64_t lease_id, const absl::Status& status);

  // A process was started that is going to register. One that does not, or not again after its
  // session has ended, is stale after ClusterOptions::open_seconds.
  void OnProcessStart(const std::string& worker_id, uint32_t pid);

  // A process has ended, or could not be started (pid 0). `returns`: another one will be started.
  void OnProcessExit(const std::string& worker_id, uint32_t pid, const absl::Status& status,
                     bool returns);

  // Looks at the clock; to be called a few times per heartbeat interval.
  void Tick();

  // Sends a plan to the lead rank, once no rank is under suspicion. A plan of another epoch, or one
  // for a group that does not serve, is dropped with OK.
  // Errors: kInvalidArgument (our own bug).
  absl::Status Submit(switchyard::worker::v1::StepPlan plan);

  // Lets all members go: each finishes the plans that it has and ends its session, within `seconds`
  // or it is ended in good order. Nobody else joins any more, and no plan is to follow.
  void Drain(double seconds);

  // Loses the group for good.
  void Fail(const absl::Status& status);

  // Ends all sessions; nothing happens any more, and no event comes.
  void Stop(const absl::Status& status);

  ClusterStatus status() const;
  uint64_t epoch() const { return epoch_; }

 private:
  enum class Phase {
    kVacant,
    kRegistered,  // waits for its session
    kSpare,       // has a session and no rank
    kLoading,     // has Configure
    kEntering,    // is loaded; has BeginEpoch
    kEntered,     // in the current epoch
    kForming,     // has FormGroup
    kReady,       // linked up, or alone
  };
  struct Member {
    Phase phase = Phase::kVacant;
    int rank = -1;                                       // -1 = none
    double vacant_since = 0;                             // if it is
    bool is_leaving = false;                             // has said so
    bool is_told_to_go = false;                          // by Shutdown or Drain
    double leave_by = 0;                                 // if it was told to
    switchyard::worker::v1::RegisterWorkerRequest info;  // of the last one, if vacant
    uint64_t lease_id = 0;
    std::unique_ptr<WorkerStream> stream;
    double phase_since = 0;  // or since the last progress of a load
    double last_heard = 0;
    double last_sent = 0;  // heartbeat
    std::optional<double> suspect_since;
    bool needs_share = false;  // its share is not the one that it was told of
    uint64_t configured_epoch = 0;
    int num_loads = 0;  // Configure commands without a ShardReady
    uint64_t last_command = 0;
    uint64_t last_heartbeat = 0;
    switchyard::worker::v1::Heartbeat heartbeat;
    std::shared_ptr<const switchyard::worker::v1::Residency> residency;
    switchyard::worker::v1::ShardProgress progress;
    switchyard::worker::v1::ShardReady ready;
  };

  int world_size() const { return static_cast<int>(placement_.world_size()); }
  // The rank whose results count and that gets the plans.
  const Member& lead() const;
  Member& lead() { return const_cast<Member&>(std::as_const(*this).lead()); }
  Member* FindLease(uint64_t lease_id);
  bool IsMember(const std::string& worker_id, uint32_t pid) const;
  Member* FindPlace(const switchyard::worker::v1::RegisterWorkerRequest& request);
  bool IsKept(size_t place) const;
  bool AnyLeaves() const;
  bool AnySuspect() const;
  // Whether every rank has a member in that phase.
  bool AllAre(Phase phase) const;
  void SendCommand(Member& member, switchyard::worker::v1::WorkerSessionResponse command);
  void SendConfigure(Member& member);
  // Sends the plans that wait, as far as the lead may get them now.
  absl::Status SendHeldPlans();

  absl::Status CheckEnvelope(const Member& member,
                             const switchyard::worker::v1::WorkerSessionRequest& message) const;
  absl::Status HandleMessage(Member& member,
                             const switchyard::worker::v1::WorkerSessionRequest& message);
  // Of messages that belong to the present epoch.
  absl::Status HandleEpochMessage(Member& member,
                                  const switchyard::worker::v1::WorkerSessionRequest& message);
  absl::Status HandleHeartbeat(Member& member, const switchyard::worker::v1::Heartbeat& heartbeat);
  absl::Status HandleResidency(Member& member, const switchyard::worker::v1::Residency& residency);
  absl::Status HandleProgress(Member& member,
                              const switchyard::worker::v1::ShardProgress& progress);
  absl::Status HandleReady(Member& member, uint64_t epoch,
                           const switchyard::worker::v1::ShardReady& ready);
  absl::Status HandleEntered(Member& member);
  absl::Status HandleRendezvous(Member& member,
                                const switchyard::worker::v1::RendezvousEntry& entry);
  absl::Status HandleFormed(Member& member);
  absl::Status HandleGroupLost(Member& member, const switchyard::worker::v1::GroupLost& lost);
  absl::Status HandleResult(Member& member, const switchyard::worker::v1::StepResult& result);

  // Whether a message of `epoch` is to be dropped; counts it then.
  bool IsStale(uint64_t epoch);
  // Begins a new epoch: all who have a rank are told, with their share if it is another one.
  void BeginEpoch();
  // Goes on as far as all ranks have come: links them up, serves.
  void Advance();
  void SendFormGroup();
  std::string BackendOfMembers() const;
  void Lose(Member& member, const absl::Status& status, bool is_stale_process);
  // The links of the epoch do not work; its members are well.
  void LoseLinks(const absl::Status& status);
  void LoseGroup(const absl::Status& status, bool returns);
  // Gives ranks to those who are there, and begins an epoch. False = there is no placement for
  // them.
  bool Regroup();
  void CheckVacancies(double now);

  void CheckMember(Member& member, double now);
  void CheckPhase(Member& member, double now);
  void CheckLeaving(Member& member, double now);
  void CheckSuspicion(Member& member, double now);
  // Moves the clocks of others by the time for which this process did not run, if it did not.
  void SkipPause(double now);
  switchyard::worker::v1::WorkerState StateOf(const Member& member) const;

  ClusterOptions options_;
  const Clock& clock_;
  ClusterEvents& events_;
  std::mt19937_64 random_;
  const std::string group_id_;
  std::vector<Member> members_;                     // by place
  switchyard::placement::v1::Placement placement_;  // the present one
  ProcessWatch processes_;
  GroupState state_ = GroupState::kForming;
  bool has_served_ = false;
  bool is_draining_ = false;
  uint64_t epoch_ = 1;
  RendezvousBook rendezvous_;
  LeadPlans plans_;
  int num_link_losses_in_a_row_ = 0;
  double first_link_loss_ = 0;  // of those
  double form_not_before_ = 0;
  bool was_replan_refused_ = false;  // for those who are there
  std::optional<double> last_look_;  // at the clock
  int64_t num_losses_ = 0, num_link_losses_ = 0, num_stale_messages_ = 0, num_faults_ = 0;
};

}  // namespace switchyard::coordinator
