// How ranks of a group find each other through their coordinator.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "switchyard/worker/v1/session.pb.h"

#include "comm/communicator.h"

namespace switchyard::worker {

// One rank's exchanges of one epoch: its parts go up with the session, and what all ranks said
// comes down.
//
// Threads: Exchange() from one thread; the rest from any.
class SessionRendezvous final : public comm::Rendezvous {
 public:
  // Takes this rank's part of an exchange; must not block.
  using Send = std::function<void(switchyard::worker::v1::RendezvousEntry)>;

  explicit SessionRendezvous(Send send) : send_(std::move(send)) {}

  // Errors: kDeadlineExceeded (a rank did not come), the reason of Cancel().
  absl::StatusOr<std::vector<std::string>> Exchange(std::string_view key, const std::string& mine,
                                                    absl::Time deadline) override;

  // What all ranks said.
  void Deliver(switchyard::worker::v1::RendezvousData data);

  // Nobody answers any more: exchanges end with `reason`, those to come too.
  void Cancel(const absl::Status& reason);

  // Why exchanges end; OK = they do not.
  absl::Status cancelled() const;

 private:
  const Send send_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<std::string, switchyard::worker::v1::RendezvousData, std::less<>> complete_;
  absl::Status cancelled_;
};

}  // namespace switchyard::worker
