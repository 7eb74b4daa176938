// What a peer's clock shows, in this rank's time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace switchyard::comm {

// The difference of two hosts' monotonic clocks: found by round trips when the group forms, and
// kept true by causality: no piece arrives before it was sent, neither here nor there.
class PeerClock {
 public:
  // A round trip: sent here, answered there at `peer_ns`, back here. The shortest one counts.
  void AddRoundTrip(int64_t sent_ns, int64_t peer_ns, int64_t back_ns) {
    if (back_ns - sent_ns >= shortest_ns_) return;
    shortest_ns_ = back_ns - sent_ns;
    offset_ns_ = sent_ns + shortest_ns_ / 2 - peer_ns;
  }

  // A piece came at `now_ns`, which the peer sent at `peer_ns` by its clock, believing that
  // this rank's clock is `peers_offset_ns` behind its own.
  void Observe(int64_t peer_ns, int64_t now_ns, int64_t peers_offset_ns) {
    offset_ns_ = std::min(std::max(offset_ns_, -peers_offset_ns), now_ns - peer_ns);
  }

  int64_t Here(int64_t peer_ns) const { return peer_ns + offset_ns_; }
  // To add to the peer's clock.
  int64_t offset_ns() const { return offset_ns_; }

 private:
  int64_t offset_ns_ = 0;
  int64_t shortest_ns_ = INT64_MAX;
};

}  // namespace switchyard::comm
