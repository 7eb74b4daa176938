#include "worker/experts/residency_report.h"

#include <fmt/format.h>

namespace switchyard::worker {

static_assert(static_cast<int>(ExpertState::kAbsent) == v1::RESIDENCY_STATE_UNSPECIFIED);
static_assert(static_cast<int>(ExpertState::kFile) == v1::RESIDENCY_STATE_FILE);
static_assert(static_cast<int>(ExpertState::kHost) == v1::RESIDENCY_STATE_HOST);
static_assert(static_cast<int>(ExpertState::kLoading) == v1::RESIDENCY_STATE_LOADING);
static_assert(static_cast<int>(ExpertState::kResident) == v1::RESIDENCY_STATE_RESIDENT);
static_assert(static_cast<int>(ExpertState::kPinned) == v1::RESIDENCY_STATE_PINNED);

std::string ResidencyLine(const ResidencySnapshot& snapshot) {
  const int64_t device =
      snapshot.Count(ExpertState::kResident) + snapshot.Count(ExpertState::kPinned);
  const int64_t host = snapshot.Count(ExpertState::kHost);
  const int64_t file = snapshot.Count(ExpertState::kFile) + snapshot.Count(ExpertState::kLoading);
  const bool has_device = snapshot.fast_state == ExpertState::kResident;
  return fmt::format("resident {}/{} (device {}, host {}, file {})", has_device ? device : host,
                     device + host + file, device, host, file);
}

v1::Residency ResidencyMessage(const ResidencySnapshot& snapshot) {
  v1::Residency message;
  message.set_version(snapshot.version);
  message.set_num_layers(static_cast<uint32_t>(snapshot.num_layers));
  message.set_num_experts(static_cast<uint32_t>(snapshot.num_experts));
  for (const ExpertState state : snapshot.states) {
    message.mutable_states()->push_back(static_cast<char>(state));
  }
  const auto fast_bytes = static_cast<uint64_t>(snapshot.fast_bytes);
  if (snapshot.fast_state == ExpertState::kResident) {
    message.set_device_bytes(fast_bytes);
  } else {
    message.set_host_bytes(fast_bytes);
  }
  message.set_budget_bytes(static_cast<uint64_t>(snapshot.budget_bytes));
  for (const ExpertCounters& from : snapshot.counters) {
    v1::ExpertCounters& to = *message.add_layers();
    to.set_hits(from.hits);
    to.set_misses(from.misses);
    to.set_promotions(from.promotions);
    to.set_evictions(from.evictions);
    to.set_bytes_moved(from.bytes_moved);
  }
  message.mutable_uses()->Assign(snapshot.uses.begin(), snapshot.uses.end());
  return message;
}

}  // namespace switchyard::worker
