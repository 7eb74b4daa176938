#include "comm/segment_transport.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"
#include "comm/monotonic_clock.h"
#include "comm/shared_futex.h"

namespace switchyard::comm {
namespace {

constexpr int64_t kSliceNs = 100'000'000;

uint64_t Bit(int rank) { return uint64_t{1} << rank; }

// The part of a header that tells operations apart, in one word. The count is compared when pieces
// meet.
uint64_t Word(const OpHeader& header) { return std::bit_cast<std::array<uint64_t, 2>>(header)[0]; }

}  // namespace

SegmentTransport::SegmentTransport(std::unique_ptr<SegmentHolder> holder, const Segment& segment,
                                   int rank, int64_t spin_ns)
    : holder_(std::move(holder)),
      segment_(segment),
      header_(segment_.header()),
      rank_(rank),
      nranks_(segment.nranks()),
      exchange_gauge_(spin_ns),
      ring_gauge_(spin_ns) {
  broadcast_writer_.ring = segment_.broadcast_ring(rank_);
  pair_writers_.resize(static_cast<size_t>(nranks_));
  broadcast_readers_.resize(static_cast<size_t>(nranks_));
  pair_readers_.resize(static_cast<size_t>(nranks_));
  for (int peer = 0; peer < nranks_; ++peer) {
    if (peer == rank_) continue;
    const size_t i = static_cast<size_t>(peer);
    pair_writers_[i].ring = segment_.pair_ring(rank_, peer);
    broadcast_readers_[i].ring = segment_.broadcast_ring(peer);
    broadcast_readers_[i].read = broadcast_readers_[i].ring.read + rank_;
    pair_readers_[i].ring = segment_.pair_ring(peer, rank_);
    pair_readers_[i].read = pair_readers_[i].ring.read;
  }
}

SegmentTransport::~SegmentTransport() {
  segment_.rank_line(rank_).has_left.store(1, std::memory_order_release);
}

int64_t SegmentTransport::exchange_bytes() const {
  return kSlotsPerExchange * segment_.slot_bytes();
}

void SegmentTransport::Announce(const OpHeader& header) {
  segment_.rank_line(rank_).operation.store(Word(header), std::memory_order_relaxed);
}

// ---- waiting ------------------------------------------------------------------------------------

absl::Status SegmentTransport::CheckPeers(const OpContext& op, uint64_t awaited) {
  SWITCHYARD_RETURN_IF_ERROR(Aborted());
  if (const uint64_t dead = holder_->DeadRanks(); dead != 0) {
    return Unavailable("{} of the group has died; {} cannot finish", DescribeRanks(dead),
                       Describe(op.header));
  }
  for (uint64_t left = awaited; left != 0; left &= left - 1) {
    const int peer = std::countr_zero(left);
    if (segment_.rank_line(peer).has_left.load(std::memory_order_acquire) != 0) {
      return Unavailable("rank {} has left the group; {} cannot finish", peer, Describe(op.header));
    }
  }
  if (op.header.kind == OpKind::kSend) return absl::OkStatus();  // has numbers of its own
  const uint64_t mine = Word(op.header);
  for (int peer = 0; peer < nranks_; ++peer) {
    const uint64_t theirs = segment_.rank_line(peer).operation.load(std::memory_order_relaxed);
    const auto header = std::bit_cast<OpHeader>(std::array<uint64_t, 2>{theirs, 0});
    if (header.seq == op.header.seq && header.kind != OpKind::kSend && theirs != mine) {
      return MismatchError(rank_, op.header, peer, header);
    }
  }
  return absl::OkStatus();
}

template <typename Ready, typename Awaited>
absl::Status SegmentTransport::SleepUntil(const OpContext& op, std::atomic<uint32_t>& word,
                                          Ready ready, Awaited awaited) {
  int64_t next_check_ns = 0;
  while (true) {
    const uint32_t ticket = word.load(std::memory_order_seq_cst);
    if (ready()) return absl::OkStatus();
    SWITCHYARD_RETURN_IF_ERROR(Aborted());
    const int64_t now_ns = NowNs();
    if (now_ns >= op.deadline_ns) return TimeoutError(op, now_ns, awaited());
    if (next_check_ns == 0) next_check_ns = now_ns + kSliceNs;
    if (now_ns >= next_check_ns) {
      const absl::Status status = CheckPeers(op, awaited());
      if (!status.ok()) {
        // What a peer did before it went still counts.
        return ready() ? absl::OkStatus() : status;
      }
      next_check_ns = now_ns + kSliceNs;
    }
    SharedFutexWait(word, ticket, std::min(next_check_ns, op.deadline_ns) - now_ns);
  }
}

absl::Status SegmentTransport::WaitUntil(const OpContext& op, uint64_t awaited,
                                         absl::FunctionRef<bool()> ready) {
  if (ring_gauge_.SpinUntil(ready)) return absl::OkStatus();
  RankLine& line = segment_.rank_line(rank_);
  line.sleeping.store(1, std::memory_order_seq_cst);
  const absl::Status status = SleepUntil(op, line.doorbell, ready, [awaited] { return awaited; });
  line.sleeping.store(0, std::memory_order_relaxed);
  return status;
}

void SegmentTransport::Ring(int rank) {
  RankLine& line = segment_.rank_line(rank);
  if (line.sleeping.load(std::memory_order_seq_cst) == 0) return;
  line.doorbell.fetch_add(1, std::memory_order_seq_cst);
  SharedFutexWakeAll(line.doorbell);
}

// ---- exchanges ----------------------------------------------------------------------------------

absl::Status SegmentTransport::BeginExchange(const OpContext& op, std::byte** slot) {
  (void)op;  // the slot of this parity is free, see the class
  *slot = Segment::Payload(segment_.exchange_slot(num_exchanges_ + 1, rank_));
  return absl::OkStatus();
}

uint64_t SegmentTransport::MissingFromExchange() const {
  uint64_t missing = 0;
  for (int peer = 0; peer < nranks_; ++peer) {
    const SlotHeader& slot = segment_.exchange_slot(num_exchanges_, peer);
    if (slot.number.load(std::memory_order_relaxed) != num_exchanges_) missing |= Bit(peer);
  }
  return missing;
}

absl::Status SegmentTransport::FinishExchange(const OpContext& op, int64_t num_bytes, Spread spread,
                                              absl::Span<Piece> pieces) {
  const uint32_t number = ++num_exchanges_;
  SlotHeader& mine = segment_.exchange_slot(number, rank_);
  mine.header = op.header;
  mine.num_bytes = num_bytes;
  mine.entry_ns = op.entry_ns;
  mine.publish_ns = NowNs();
  mine.number.store(number, std::memory_order_relaxed);

  const uint32_t complete = number & ~kAbortBit;
  if (header_.arrivals.fetch_add(1, std::memory_order_acq_rel) ==
      static_cast<uint32_t>(nranks_) - 1) {
    header_.arrivals.store(0, std::memory_order_relaxed);
    header_.generation.store(complete, std::memory_order_seq_cst);
    if (header_.sleepers.load(std::memory_order_seq_cst) != 0) {
      SharedFutexWakeAll(header_.generation);
    }
  } else {
    const auto ready = [this, complete] {
      return (header_.generation.load(std::memory_order_seq_cst) & ~kAbortBit) == complete;
    };
    if (!exchange_gauge_.SpinUntil(ready)) {
      header_.sleepers.fetch_add(1, std::memory_order_seq_cst);
      const absl::Status status =
          SleepUntil(op, header_.generation, ready, [this] { return MissingFromExchange(); });
      header_.sleepers.fetch_sub(1, std::memory_order_relaxed);
      SWITCHYARD_RETURN_IF_ERROR(status);
    }
  }

  for (int peer = 0; peer < nranks_; ++peer) {
    SlotHeader& slot = segment_.exchange_slot(number, peer);
    Piece& piece = pieces[static_cast<size_t>(peer)];
    piece.data = Segment::Payload(slot);
    piece.header = slot.header;
    piece.num_bytes = slot.num_bytes;
    piece.entry_ns = slot.entry_ns;
    piece.publish_ns = piece.arrived_ns = slot.publish_ns;
    switch (spread) {
      case Spread::kToAll:
        break;
      case Spread::kToRoot:
        if (rank_ != op.header.root) piece.num_bytes = 0;
        break;
      case Spread::kPersonal:
        piece.num_bytes /= nranks_;
        piece.data += rank_ * piece.num_bytes;
        break;
    }
  }
  return absl::OkStatus();
}

// ---- rings --------------------------------------------------------------------------------------

SegmentTransport::Writer& SegmentTransport::writer(RingKind ring, int peer) {
  return ring == RingKind::kBroadcast ? broadcast_writer_
                                      : pair_writers_[static_cast<size_t>(peer)];
}

SegmentTransport::Reader& SegmentTransport::reader(RingKind ring, int peer) {
  return ring == RingKind::kBroadcast ? broadcast_readers_[static_cast<size_t>(peer)]
                                      : pair_readers_[static_cast<size_t>(peer)];
}

bool SegmentTransport::CanPut(RingKind ring, int peer) {
  Writer& writer = this->writer(ring, peer);
  const uint32_t num_slots = static_cast<uint32_t>(segment_.num_slots());
  if (writer.num_written - writer.least_read < num_slots) return true;
  uint32_t most_unread = 0;
  if (ring == RingKind::kPair) {
    most_unread = writer.num_written - writer.ring.read[0].value.load(std::memory_order_seq_cst);
  } else {
    for (int reader = 0; reader < nranks_; ++reader) {
      if (reader == rank_) continue;
      most_unread = std::max(most_unread, writer.num_written - writer.ring.read[reader].value.load(
                                                                   std::memory_order_seq_cst));
    }
  }
  writer.least_read = writer.num_written - most_unread;
  return most_unread < num_slots;
}

absl::Status SegmentTransport::Put(const OpContext& op, RingKind ring, int peer, const void* data,
                                   int64_t num_bytes) {
  Writer& writer = this->writer(ring, peer);
  SlotHeader& slot = segment_.ring_slot(writer.ring, writer.num_written);
  std::memcpy(Segment::Payload(slot), data, static_cast<size_t>(num_bytes));
  slot.header = op.header;
  slot.num_bytes = num_bytes;
  slot.entry_ns = op.entry_ns;
  slot.publish_ns = NowNs();
  writer.ring.published->value.store(++writer.num_written, std::memory_order_seq_cst);
  if (ring == RingKind::kPair) {
    Ring(peer);
    return absl::OkStatus();
  }
  for (int reader = 0; reader < nranks_; ++reader) {
    if (reader != rank_) Ring(reader);
  }
  return absl::OkStatus();
}

bool SegmentTransport::Peek(RingKind ring, int peer, Piece* piece) {
  const Reader& reader = this->reader(ring, peer);
  if (reader.ring.published->value.load(std::memory_order_seq_cst) == reader.num_read) {
    return false;
  }
  SlotHeader& slot = segment_.ring_slot(reader.ring, reader.num_read);
  piece->data = Segment::Payload(slot);
  piece->header = slot.header;
  piece->num_bytes = slot.num_bytes;
  piece->entry_ns = slot.entry_ns;
  piece->publish_ns = piece->arrived_ns = slot.publish_ns;
  return true;
}

void SegmentTransport::Release(RingKind ring, int peer) {
  Reader& reader = this->reader(ring, peer);
  reader.read->value.store(++reader.num_read, std::memory_order_seq_cst);
  Ring(peer);  // it may wait for credits
}

// ---- aborts -------------------------------------------------------------------------------------

absl::Status SegmentTransport::Aborted() {
  if (header_.abort_state.load(std::memory_order_acquire) != SegmentHeader::kAborted) [[likely]] {
    return absl::OkStatus();
  }
  const auto code = static_cast<absl::StatusCode>(header_.abort_code);
  const absl::string_view message(header_.abort_message,
                                  strnlen(header_.abort_message, sizeof(header_.abort_message)));
  if (header_.abort_rank == rank_) return absl::Status(code, message);
  return absl::Status(code, fmt::format("rank {} reports: {}", header_.abort_rank, ToStd(message)));
}

void SegmentTransport::Abort(const absl::Status& reason) {
  uint32_t running = SegmentHeader::kRunning;
  if (!header_.abort_state.compare_exchange_strong(running, SegmentHeader::kAborting)) return;
  header_.abort_rank = rank_;
  header_.abort_code = static_cast<int32_t>(reason.code());
  const std::string_view message = Message(reason);
  const size_t length = std::min(message.size(), sizeof(header_.abort_message) - 1);
  std::memcpy(header_.abort_message, message.data(), length);
  header_.abort_message[length] = '\0';
  header_.abort_state.store(SegmentHeader::kAborted, std::memory_order_seq_cst);
  header_.generation.fetch_or(kAbortBit);
  SharedFutexWakeAll(header_.generation);
  for (int peer = 0; peer < nranks_; ++peer) {
    RankLine& line = segment_.rank_line(peer);
    line.doorbell.fetch_add(1);
    SharedFutexWakeAll(line.doorbell);
  }
}

}  // namespace switchyard::comm
