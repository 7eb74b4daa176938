// Layout of the memory that the ranks of a shm or local group share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

#include "comm/transport.h"

namespace switchyard::comm {

// Large payloads take fewer exchanges: a slot of an exchange is as large as this many of a ring.
inline constexpr int64_t kSlotsPerExchange = 4;

struct SegmentHeader {
  uint64_t magic = 0;
  uint32_t layout_version = 0;
  int32_t nranks = 0;
  uint64_t group_hash = 0;  // of group id and channel
  uint64_t epoch = 0;
  int64_t slot_bytes = 0;
  int32_t num_slots = 0;
  int32_t creator_pid = 0;

  // Ranks that arrived at the running exchange; the last one sets it back.
  alignas(64) std::atomic<uint32_t> arrivals{0};
  // The last exchange that is complete, below kAbortBit; ranks sleep on it.
  alignas(64) std::atomic<uint32_t> generation{0};
  alignas(64) std::atomic<uint32_t> sleepers{0};  // ranks that may sleep on `generation`

  enum AbortState : uint32_t { kRunning, kAborting, kAborted };
  alignas(64) std::atomic<uint32_t> abort_state{kRunning};
  int32_t abort_rank = 0;  // these are valid with kAborted
  int32_t abort_code = 0;
  char abort_message[244] = {};
};
// Set by an abort, so that who is about to sleep on the old value does not.
inline constexpr uint32_t kAbortBit = uint32_t{1} << 31;

struct alignas(64) RankLine {
  std::atomic<uint64_t> operation{0};  // OpHeader up to the root, for comparison
  std::atomic<uint32_t> doorbell{0};   // the rank sleeps on it when it waits for rings
  std::atomic<uint32_t> sleeping{0};
  std::atomic<uint32_t> has_left{0};
};

// In front of every slot.
struct alignas(128) SlotHeader {
  OpHeader header;
  int64_t num_bytes = 0;
  int64_t entry_ns = 0;
  int64_t publish_ns = 0;
  std::atomic<uint32_t> number{0};  // of the exchange whose piece it holds
};

struct alignas(64) RingCounter {
  std::atomic<uint32_t> value{0};
};

// Finds things in a segment; cheap to copy.
class Segment {
 public:
  // Bytes that a group needs.
  static int64_t Bytes(int nranks, int64_t slot_bytes, int num_slots);

  // The segment at `memory`, which is aligned to 128 bytes and has Bytes().
  Segment(std::byte* memory, int nranks, int64_t slot_bytes, int num_slots)
      : memory_(memory), nranks_(nranks), slot_bytes_(slot_bytes), num_slots_(num_slots) {}

  // Fills in a new segment of zeros.
  void Create(const CommOptions& options);
  // Compares it with what this rank was told.
  // Errors: ABORTED (another epoch), FAILED_PRECONDITION (anything else).
  absl::Status Verify(const CommOptions& options) const;

  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(memory_); }
  RankLine& rank_line(int rank) const {
    return *reinterpret_cast<RankLine*>(memory_ + HeaderBytes() + rank * LineBytes());
  }
  SlotHeader& exchange_slot(uint32_t number, int rank) const {
    return *reinterpret_cast<SlotHeader*>(memory_ + ExchangeOffset() +
                                          ((number & 1) * nranks_ + rank) * ExchangeSlotBytes());
  }
  // A ring: `published` pieces so far, for each reader how many it has read, slots.
  struct Ring {
    RingCounter* published;
    RingCounter* read;  // by reader
    std::byte* slots;
    SlotHeader& slot(uint32_t number, int num_slots, int64_t stride) const {
      return *reinterpret_cast<SlotHeader*>(
          slots + static_cast<int64_t>(number % static_cast<uint32_t>(num_slots)) * stride);
    }
  };
  Ring broadcast_ring(int root) const;           // readers are numbered by rank
  Ring pair_ring(int sender, int reader) const;  // has one reader, number 0

  SlotHeader& ring_slot(const Ring& ring, uint32_t number) const {
    return ring.slot(number, num_slots_, RingSlotBytes());
  }
  static std::byte* Payload(SlotHeader& slot) {
    return reinterpret_cast<std::byte*>(&slot) + sizeof(SlotHeader);
  }

  int nranks() const { return nranks_; }
  int num_slots() const { return num_slots_; }
  int64_t slot_bytes() const { return slot_bytes_; }

 private:
  static int64_t HeaderBytes();
  static int64_t LineBytes() { return sizeof(RankLine); }
  int64_t ExchangeSlotBytes() const {
    return static_cast<int64_t>(sizeof(SlotHeader)) + kSlotsPerExchange * slot_bytes_;
  }
  int64_t RingSlotBytes() const { return static_cast<int64_t>(sizeof(SlotHeader)) + slot_bytes_; }
  int64_t ExchangeOffset() const;
  int64_t RingsOffset() const;
  int64_t RingBytes(int num_readers) const;
  Ring RingAt(int64_t offset, int num_readers) const;

  std::byte* memory_;
  int nranks_;
  int64_t slot_bytes_;
  int num_slots_;
};

uint64_t GroupHash(std::string_view group_id, std::string_view channel);

}  // namespace switchyard::comm
