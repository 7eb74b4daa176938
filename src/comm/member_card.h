// What ranks tell each other before they have a communicator, and the checks on it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "comm/communicator.h"
#include "comm/wait_plan.h"

namespace switchyard::comm {

// A rank as its peers see it while a group forms.
struct MemberCard {
  std::string backend;
  std::string group_id;
  std::string channel;
  uint64_t epoch = 0;
  int rank = 0;
  int nranks = 0;
  int64_t slot_bytes = 0;
  int num_slots = 0;
  std::string host;           // equal for processes that run on one kernel
  std::string pid_namespace;  // equal where process ids mean the same
  int pid = 0;
  uint64_t start_time = 0;  // of the process, as the kernel counts it; tells reused ids apart
  RankThreads threads;
  std::string address = "";  // the backend's own: a segment's name, a UCX address. Any bytes
  // An error of this rank, so that the others do not wait for it.
  absl::Status status = {};
};

std::string Serialize(const MemberCard& card);
// Errors: FAILED_PRECONDITION if the text is no card, as that of another version.
absl::StatusOr<MemberCard> ParseMemberCard(std::string_view text);

// This rank's card, without address.
MemberCard MakeMemberCard(BackendKind kind, const CommOptions& options);

// Start time of a process from /proc, 0 if it cannot be read.
uint64_t ProcessStartTime(int pid);

// Checks what holds for every CPU backend.
absl::Status CheckOptions(const CommOptions& options);

// Shows `mine` to all ranks and returns their cards by rank. `phase` tells several exchanges of one
// forming apart.
//
// Errors: ABORTED (ranks of several epochs), FAILED_PRECONDITION (ranks that differ otherwise), the
//         error of any rank, those of the rendezvous.
absl::StatusOr<std::vector<MemberCard>> ExchangeCards(const MemberCard& mine,
                                                      std::string_view phase,
                                                      Rendezvous& rendezvous, absl::Time deadline);

// The spin budget of this rank, given the cards of all.
int64_t SpinBudgetNs(WaitPolicy policy, const std::vector<MemberCard>& cards, int rank);

}  // namespace switchyard::comm
