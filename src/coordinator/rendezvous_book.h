// What the ranks of a group tell each other through the coordinator before they can reach each
// other: one all-gather of small blobs for each key.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "switchyard/worker/v1/session.pb.h"

namespace switchyard::coordinator {

inline constexpr size_t kMaxRendezvousKeys = 32;  // of one epoch: a few for each communicator
inline constexpr size_t kMaxRendezvousKeyBytes = 64;
// An address of a worker with many network devices has a few KiB.
inline constexpr size_t kMaxRendezvousEntryBytes = size_t{16} << 10;

// The exchanges of one epoch.
//
// Threads: one at a time.
class RendezvousBook {
 public:
  // Forgets everything; entries of `num_ranks` ranks are taken from now on.
  void Begin(int num_ranks);

  // Enters what `rank` says. Returns whether the exchange is complete with it; complete() is what
  // all said then.
  // Errors: kInvalidArgument (no key, a key or data that are too long, too many keys, the same rank
  //         twice); nothing has changed then.
  absl::StatusOr<bool> Add(int rank, const switchyard::worker::v1::RendezvousEntry& entry);

  // REQUIRES: the exchange of that key is complete.
  switchyard::worker::v1::RendezvousData complete(const std::string& key) const;

 private:
  struct Exchange {
    std::vector<std::string> entries;  // by rank
    std::vector<bool> has_come;
    int num_come = 0;
  };
  int num_ranks_ = 0;
  std::map<std::string, Exchange> exchanges_;
};

}  // namespace switchyard::coordinator
