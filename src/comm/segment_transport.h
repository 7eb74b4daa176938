// Moves pieces through memory that all ranks of a group share: the transport of shm and local.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/segment.h"
#include "comm/transport.h"
#include "comm/wait_plan.h"

namespace switchyard::comm {

// Keeps the memory of a segment, and knows which ranks live.
class SegmentHolder {
 public:
  virtual ~SegmentHolder() = default;
  // Ranks (bits) whose process has ended. Threads: any.
  virtual uint64_t DeadRanks() const = 0;
};

// An exchange is one-shot: each rank writes its slot and arrives; the last one wakes those that
// sleep. Slots are doubled by the parity of the exchange: a rank publishes exchange s only after it
// has read all slots of s-1, so nobody can still read the slots of s-2. Writers of rings read
// nobody, so readers acknowledge what they have read.
//
// Waiting ranks spin as SpinGauge says, then sleep in slices of 100 ms, between which they look for
// an abort, dead or departed peers, the deadline and peers that wait in other operations.
class SegmentTransport final : public Transport {
 public:
  SegmentTransport(std::unique_ptr<SegmentHolder> holder, const Segment& segment, int rank,
                   int64_t spin_ns);
  ~SegmentTransport() override;

  int64_t exchange_bytes() const override;
  int64_t ring_bytes() const override { return segment_.slot_bytes(); }
  void Announce(const OpHeader& header) override;
  absl::Status BeginExchange(const OpContext& op, std::byte** slot) override;
  absl::Status FinishExchange(const OpContext& op, int64_t num_bytes, Spread spread,
                              absl::Span<Piece> pieces) override;
  bool CanPut(RingKind ring, int peer) override;
  absl::Status Put(const OpContext& op, RingKind ring, int peer, const void* data,
                   int64_t num_bytes) override;
  bool Peek(RingKind ring, int peer, Piece* piece) override;
  void Release(RingKind ring, int peer) override;
  absl::Status WaitUntil(const OpContext& op, uint64_t awaited,
                         absl::FunctionRef<bool()> ready) override;
  absl::Status Aborted() override;
  void Abort(const absl::Status& reason) override;

 private:
  // This rank's side of a ring: how far it has written or read, and the least that readers had read
  // when it last looked.
  struct Writer {
    Segment::Ring ring;
    uint32_t num_written = 0;
    uint32_t least_read = 0;
  };
  struct Reader {
    Segment::Ring ring;
    RingCounter* read = nullptr;
    uint32_t num_read = 0;
  };

  Writer& writer(RingKind ring, int peer);
  Reader& reader(RingKind ring, int peer);
  void Ring(int rank);
  absl::Status CheckPeers(const OpContext& op, uint64_t awaited);
  uint64_t MissingFromExchange() const;
  template <typename Ready, typename Awaited>
  absl::Status SleepUntil(const OpContext& op, std::atomic<uint32_t>& word, Ready ready,
                          Awaited awaited);

  const std::unique_ptr<SegmentHolder> holder_;
  const Segment segment_;
  SegmentHeader& header_;
  const int rank_;
  const int nranks_;
  SpinGauge exchange_gauge_, ring_gauge_;
  uint32_t num_exchanges_ = 0;
  Writer broadcast_writer_;
  std::vector<Writer> pair_writers_;       // by reader
  std::vector<Reader> broadcast_readers_;  // by root
  std::vector<Reader> pair_readers_;       // by sender
};

}  // namespace switchyard::comm
