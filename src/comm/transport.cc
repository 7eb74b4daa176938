#include "comm/transport.h"

#include <bit>

#include "base/status.h"

namespace switchyard::comm {

std::string Describe(const OpHeader& header) {
  switch (header.kind) {
    case OpKind::kBarrier:
      return fmt::format("barrier #{}", header.seq);
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
      return fmt::format("{} #{} ({}, {}, count {})", Name(header.kind), header.seq,
                         Name(header.type), Name(header.redop), header.count);
    case OpKind::kReduce:
      return fmt::format("reduce #{} ({}, {}, count {}, root {})", header.seq, Name(header.type),
                         Name(header.redop), header.count, header.root);
    case OpKind::kBroadcast:
      return fmt::format("broadcast #{} ({}, count {}, root {})", header.seq, Name(header.type),
                         header.count, header.root);
    default:
      return fmt::format("{} #{} ({}, count {})", Name(header.kind), header.seq, Name(header.type),
                         header.count);
  }
}

std::string DescribeRanks(uint64_t ranks) {
  std::string text = std::popcount(ranks) == 1 ? "rank" : "ranks";
  const char* separator = " ";
  for (; ranks != 0; ranks &= ranks - 1) {
    text += fmt::format("{}{}", separator, std::countr_zero(ranks));
    separator = ", ";
  }
  return text;
}

absl::Status MismatchError(int rank, const OpHeader& mine, int peer, const OpHeader& theirs) {
  return FailedPrecondition("ranks issue different operations: rank {} {}, rank {} {}", rank,
                            Describe(mine), peer, Describe(theirs));
}

absl::Status TimeoutError(const OpContext& op, int64_t now_ns, uint64_t awaited) {
  return DeadlineExceeded("{} did not finish in {:.1f} s: waited for {}", Describe(op.header),
                          static_cast<double>(now_ns - op.entry_ns) * 1e-9, DescribeRanks(awaited));
}

}  // namespace switchyard::comm
