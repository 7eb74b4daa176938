#include "coordinator/ledger_check.h"

#include <bitset>
#include <cmath>
#include <string_view>

#include "base/status.h"
#include "base/status_macros.h"
#include "placement/placement.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

// The enum of stages is far smaller; a ledger lists each once.
constexpr int kMaxCosts = 64;
// Of one step. More than a step can move or read, and 2^15 of them add up without overflow.
constexpr uint64_t kMaxCount = uint64_t{1} << 48;

absl::Status CheckSeconds(std::string_view field, double seconds) {
  if (std::isfinite(seconds) && seconds >= 0) return absl::OkStatus();
  return InvalidArgument("result has no valid time: {}, got: {}", field, seconds);
}

absl::Status CheckCount(std::string_view field, uint64_t count) {
  if (count <= kMaxCount) return absl::OkStatus();
  return InvalidArgument("result has a count beyond any step: {}, got: {}", field, count);
}

absl::Status CheckCosts(std::string_view field,
                        const google::protobuf::RepeatedPtrField<v1::StageCost>& costs) {
  if (costs.size() > kMaxCosts) {
    return InvalidArgument("result has too many entries: {}, got: {}", field, costs.size());
  }
  for (const v1::StageCost& cost : costs) {
    SWITCHYARD_RETURN_IF_ERROR(CheckSeconds(fmt::format("{}.seconds", field), cost.seconds()));
    SWITCHYARD_RETURN_IF_ERROR(
        CheckCount(fmt::format("{}.weight_bytes", field), cost.weight_bytes()));
  }
  return absl::OkStatus();
}

using Seen = std::bitset<placement::kMaxWorldSize>;

absl::Status CheckRank(std::string_view field, uint32_t rank, Seen& seen) {
  if (rank >= seen.size()) {
    return InvalidArgument("result names a rank that no group has: {}, got: {}", field, rank);
  }
  if (seen[rank]) return InvalidArgument("result names a rank twice: {}, got: {}", field, rank);
  seen[rank] = true;
  return absl::OkStatus();
}

absl::Status CheckReceived(const v1::RankCost& rank) {
  Seen seen;
  seen[rank.rank()] = true;  // nobody receives from itself
  for (const v1::PeerTraffic& traffic : rank.received()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckRank("ranks.received.peer", traffic.peer(), seen));
    SWITCHYARD_RETURN_IF_ERROR(CheckCount("ranks.received.bytes", traffic.bytes()));
    SWITCHYARD_RETURN_IF_ERROR(CheckCount("ranks.received.num_messages", traffic.num_messages()));
    SWITCHYARD_RETURN_IF_ERROR(
        CheckSeconds("ranks.received.transfer_seconds", traffic.transfer_seconds()));
    SWITCHYARD_RETURN_IF_ERROR(
        CheckSeconds("ranks.received.flight_seconds", traffic.flight_seconds()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLedger(const v1::StepResult& result) {
  SWITCHYARD_RETURN_IF_ERROR(CheckSeconds("seconds", result.seconds()));
  SWITCHYARD_RETURN_IF_ERROR(CheckSeconds("idle_seconds", result.idle_seconds()));
  SWITCHYARD_RETURN_IF_ERROR(CheckCosts("costs", result.costs()));
  Seen seen;
  for (const v1::RankCost& rank : result.ranks()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckRank("ranks.rank", rank.rank(), seen));
    SWITCHYARD_RETURN_IF_ERROR(CheckSeconds("ranks.seconds", rank.seconds()));
    SWITCHYARD_RETURN_IF_ERROR(CheckSeconds("ranks.idle_seconds", rank.idle_seconds()));
    SWITCHYARD_RETURN_IF_ERROR(CheckCosts("ranks.costs", rank.costs()));
    SWITCHYARD_RETURN_IF_ERROR(CheckReceived(rank));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::coordinator
