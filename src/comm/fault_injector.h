// Faults of links, injected where a rank reads from a peer: for tests and experiments.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "comm/communicator.h"

namespace switchyard::comm {

// Makes links from peers to one rank slow or broken, by rules as text:
//
//   0->2 delay=200us rate=2GB/s        the link from rank 0 to rank 2 has that latency and speed
//   *->1 op=all_reduce,broadcast drop  whatever rank 1 reads in these operations never comes
//   1->0 freeze after=100              after 100 pieces, the link stands still
//
// Rules are separated by ";" or line breaks; "*" is any rank; a later rule replaces what an earlier
// one said of the same link and operation. A link carries one piece at a time: a piece starts when
// it was sent and the link is free, takes size / rate, and is read delay later. So links work in
// parallel, and a reader that comes late enough notices nothing, as with real ones.
//
// drop:   the link is cut and this is known: reading fails with UNAVAILABLE and names the pair.
// freeze: nothing comes and nothing is known: reading ends at the deadline.
//
// Threads: the one that issues operations.
class FaultInjector {
 public:
  // Parses the rules for rank `rank` of `nranks`; rules for other readers are checked and left out.
  //
  // Errors: INVALID_ARGUMENT quoting the rule and what would be right.
  static absl::StatusOr<FaultInjector> Parse(std::string_view rules, int rank, int nranks);

  bool empty() const { return links_.empty(); }

  struct Delivery {
    enum Kind : uint8_t { kRead, kDropped, kFrozen } kind = kRead;
    int64_t at_ns = 0;  // for kRead: when the piece can be read
  };
  // A piece of `num_bytes` that peer `from` sent at `publish_ns` is about to be read.
  Delivery OnRead(int from, OpKind kind, int64_t publish_ns, int64_t num_bytes);

 private:
  struct Fault {
    int64_t delay_ns = 0;
    double bytes_per_ns = 0;  // 0: no limit
    bool drop = false;
    bool freeze = false;
    int64_t after = 0;  // pieces that pass undisturbed
  };
  struct Link {
    std::array<Fault, kNumOpKinds> faults;  // by operation
    int64_t num_pieces = 0;
    int64_t busy_until_ns = 0;
  };

  std::vector<Link> links_;  // by peer; empty without rules
};

}  // namespace switchyard::comm
