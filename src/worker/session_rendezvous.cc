#include "worker/session_rendezvous.h"

#include <utility>

#include "absl/time/clock.h"

#include "base/status.h"

namespace switchyard::worker {

namespace v1 = switchyard::worker::v1;

absl::StatusOr<std::vector<std::string>> SessionRendezvous::Exchange(std::string_view key,
                                                                     const std::string& mine,
                                                                     absl::Time deadline) {
  v1::RendezvousEntry entry;
  entry.set_key(std::string(key));
  entry.set_data(mine);
  send_(std::move(entry));
  std::unique_lock lock(mutex_);
  const bool has_come = changed_.wait_until(lock, absl::ToChronoTime(deadline), [&] {
    return !cancelled_.ok() || complete_.find(key) != complete_.end();
  });
  if (!cancelled_.ok()) return cancelled_;
  if (!has_come) return DeadlineExceeded("other ranks did not come to the exchange {}", key);
  const auto at = complete_.find(key);
  return std::vector<std::string>(at->second.entries().begin(), at->second.entries().end());
}

void SessionRendezvous::Deliver(v1::RendezvousData data) {
  std::lock_guard lock(mutex_);
  std::string key = data.key();
  complete_[std::move(key)] = std::move(data);
  changed_.notify_all();
}

void SessionRendezvous::Cancel(const absl::Status& reason) {
  std::lock_guard lock(mutex_);
  if (cancelled_.ok()) cancelled_ = reason;
  changed_.notify_all();
}

absl::Status SessionRendezvous::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

}  // namespace switchyard::worker
