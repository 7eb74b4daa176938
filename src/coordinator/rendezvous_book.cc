#include "coordinator/rendezvous_book.h"

#include "base/check.h"
#include "base/status.h"

namespace switchyard::coordinator {

namespace v1 = switchyard::worker::v1;

void RendezvousBook::Begin(int num_ranks) {
  num_ranks_ = num_ranks;
  exchanges_.clear();
}

absl::StatusOr<bool> RendezvousBook::Add(int rank, const v1::RendezvousEntry& entry) {
  SWITCHYARD_CHECK(rank >= 0 && rank < num_ranks_);
  const std::string& key = entry.key();
  if (key.empty() || key.size() > kMaxRendezvousKeyBytes) {
    return InvalidArgument(
        "exchange has no valid name: rendezvous_entry.key, wanted: 1 to {} bytes",
        kMaxRendezvousKeyBytes);
  }
  if (entry.data().size() > kMaxRendezvousEntryBytes) {
    return InvalidArgument("entry is too long: rendezvous_entry.data, got: {} bytes, at most: {}",
                           entry.data().size(), kMaxRendezvousEntryBytes);
  }
  auto at = exchanges_.find(key);
  if (at == exchanges_.end()) {
    if (exchanges_.size() == kMaxRendezvousKeys) {
      return InvalidArgument("too many exchanges in one epoch: rendezvous_entry.key, at most: {}",
                             kMaxRendezvousKeys);
    }
    const auto ranks = static_cast<size_t>(num_ranks_);
    at = exchanges_
             .emplace(key, Exchange{.entries = std::vector<std::string>(ranks),
                                    .has_come = std::vector<bool>(ranks, false)})
             .first;
  }
  Exchange& exchange = at->second;
  const auto index = static_cast<size_t>(rank);
  if (exchange.has_come[index]) {
    return InvalidArgument("rank takes part in an exchange twice: rendezvous_entry.key");
  }
  exchange.entries[index] = entry.data();
  exchange.has_come[index] = true;
  return ++exchange.num_come == num_ranks_;
}

v1::RendezvousData RendezvousBook::complete(const std::string& key) const {
  v1::RendezvousData data;
  data.set_key(key);
  for (const std::string& entry : exchanges_.at(key).entries) data.add_entries(entry);
  return data;
}

}  // namespace switchyard::coordinator
