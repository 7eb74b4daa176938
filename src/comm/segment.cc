#include "comm/segment.h"

#include <new>
#include <unistd.h>

#include "base/status.h"

namespace switchyard::comm {
namespace {

constexpr uint64_t kMagic = 0x7377697463687964;  // "switchyd"
constexpr uint32_t kLayoutVersion = 1;

int64_t RoundUp(int64_t bytes) { return (bytes + 127) / 128 * 128; }

}  // namespace

int64_t Segment::HeaderBytes() { return RoundUp(sizeof(SegmentHeader)); }

int64_t Segment::ExchangeOffset() const { return RoundUp(HeaderBytes() + nranks_ * LineBytes()); }

int64_t Segment::RingsOffset() const {
  return ExchangeOffset() + 2 * nranks_ * ExchangeSlotBytes();
}

int64_t Segment::RingBytes(int num_readers) const {
  return RoundUp((1 + num_readers) * static_cast<int64_t>(sizeof(RingCounter))) +
         num_slots_ * RingSlotBytes();
}

Segment::Ring Segment::RingAt(int64_t offset, int num_readers) const {
  std::byte* at = memory_ + offset;
  RingCounter* counters = reinterpret_cast<RingCounter*>(at);
  return {.published = counters,
          .read = counters + 1,
          .slots = at + RoundUp((1 + num_readers) * static_cast<int64_t>(sizeof(RingCounter)))};
}

Segment::Ring Segment::broadcast_ring(int root) const {
  return RingAt(RingsOffset() + root * RingBytes(nranks_), nranks_);
}

Segment::Ring Segment::pair_ring(int sender, int reader) const {
  const int64_t number = int64_t{sender} * (nranks_ - 1) + (reader < sender ? reader : reader - 1);
  return RingAt(RingsOffset() + nranks_ * RingBytes(nranks_) + number * RingBytes(1), 1);
}

int64_t Segment::Bytes(int nranks, int64_t slot_bytes, int num_slots) {
  const Segment segment(nullptr, nranks, slot_bytes, num_slots);
  return segment.RingsOffset() + nranks * segment.RingBytes(nranks) +
         int64_t{nranks} * (nranks - 1) * segment.RingBytes(1);
}

void Segment::Create(const CommOptions& options) {
  SegmentHeader* header = new (memory_) SegmentHeader;
  header->nranks = nranks_;
  header->group_hash = GroupHash(options.group_id, options.channel);
  header->epoch = options.epoch;
  header->slot_bytes = slot_bytes_;
  header->num_slots = num_slots_;
  header->creator_pid = getpid();
  header->layout_version = kLayoutVersion;
  header->magic = kMagic;
  for (int rank = 0; rank < nranks_; ++rank) {
    new (&rank_line(rank)) RankLine;
    new (&exchange_slot(0, rank)) SlotHeader;
    new (&exchange_slot(1, rank)) SlotHeader;
  }
  const auto create_ring = [this](const Ring& ring, int num_readers) {
    for (int i = 0; i <= num_readers; ++i) new (ring.published + i) RingCounter;
    for (int i = 0; i < num_slots_; ++i)
      new (&ring_slot(ring, static_cast<uint32_t>(i))) SlotHeader;
  };
  for (int sender = 0; sender < nranks_; ++sender) {
    create_ring(broadcast_ring(sender), nranks_);
    for (int reader = 0; reader < nranks_; ++reader) {
      if (reader != sender) create_ring(pair_ring(sender, reader), 1);
    }
  }
}

absl::Status Segment::Verify(const CommOptions& options) const {
  const SegmentHeader& header = this->header();
  if (header.magic != kMagic || header.layout_version != kLayoutVersion) {
    return FailedPrecondition("shared segment has another layout, version {} here: {}",
                              kLayoutVersion, header.layout_version);
  }
  if (header.group_hash != GroupHash(options.group_id, options.channel)) {
    return FailedPrecondition("shared segment belongs to another group than {}/{}",
                              options.group_id, options.channel);
  }
  if (header.epoch != options.epoch) {
    return absl::AbortedError(fmt::format("epoch {} is stale: the shared segment has epoch {}",
                                          options.epoch, header.epoch));
  }
  if (header.nranks != nranks_ || header.slot_bytes != slot_bytes_ ||
      header.num_slots != num_slots_) {
    return FailedPrecondition(
        "shared segment has {} ranks, {} slots of {} bytes; this rank wants {}, {} of {}",
        header.nranks, header.num_slots, header.slot_bytes, nranks_, num_slots_, slot_bytes_);
  }
  return absl::OkStatus();
}

uint64_t GroupHash(std::string_view group_id, std::string_view channel) {
  // FNV-1a, with a byte between that no text has.
  uint64_t hash = 0xcbf29ce484222325;
  const auto mix = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (char c : group_id) mix(static_cast<unsigned char>(c));
  mix(0xff);
  for (char c : channel) mix(static_cast<unsigned char>(c));
  return hash;
}

}  // namespace switchyard::comm
