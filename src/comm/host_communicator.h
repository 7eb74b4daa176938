// The Communicator of CPU backends: operations cut into pieces, which a Transport moves.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/communicator.h"
#include "comm/fault_injector.h"
#include "comm/flight_recorder.h"
#include "comm/transport.h"

namespace switchyard::comm {

// Checks arguments, numbers and announces operations, compares headers, sums by the tree, keeps the
// first error, counts and records. Every operation runs on the calling thread.
class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(const CommOptions& options, BackendKind backend, FaultInjector faults,
                   std::unique_ptr<Transport> transport);
  ~HostCommunicator() override;

  Capabilities caps() const override;
  absl::StatusOr<std::unique_ptr<Registration>> Register(void* ptr, int64_t num_bytes,
                                                         MemSpace space) override;
  absl::Status AllReduce(const void* in, void* out, int64_t count, DataType type, RedOp op,
                         Stream stream) override;
  absl::Status AllGather(const void* in, void* out, int64_t count_per_rank, DataType type,
                         Stream stream) override;
  absl::Status ReduceScatter(const void* in, void* out, int64_t count_per_rank, DataType type,
                             RedOp op, Stream stream) override;
  absl::Status Broadcast(void* buffer, int64_t count, DataType type, int root,
                         Stream stream) override;
  absl::Status Reduce(const void* in, void* out, int64_t count, DataType type, RedOp op, int root,
                      Stream stream) override;
  absl::Status AllToAll(const void* in, void* out, int64_t count_per_peer, DataType type,
                        Stream stream) override;
  absl::Status Send(const void* buffer, int64_t count, DataType type, int peer,
                    Stream stream) override;
  absl::Status Recv(void* buffer, int64_t count, DataType type, int peer, Stream stream) override;
  absl::Status GroupStart() override;
  absl::Status GroupEnd() override;
  absl::Status Barrier(absl::Time deadline) override;
  absl::Status Wait(Stream stream, absl::Time deadline) override;
  absl::Status Health() const override;
  void Abort(const absl::Status& reason) override;
  CommStats Stats() const override;
  CommTotals Totals() const override;
  PeerTotals TotalsOfPeer(int peer) const override;

  const FlightRecorder& flight_recorder() const { return flight_recorder_; }

 private:
  static constexpr size_t kMaxGroup = 64;  // transfers between GroupStart() and GroupEnd()

  // Written by the issuing thread, read by any.
  class Counter {
   public:
    void Add(int64_t amount) {
      value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
    }
    int64_t value() const { return value_.load(std::memory_order_relaxed); }

   private:
    std::atomic<int64_t> value_{0};
  };
  struct OpCounters {
    Counter num_calls, num_bytes, wait_ns, transfer_ns;
    std::array<Counter, 24> time_histogram;
  };
  struct PeerCounters {
    Counter sent_bytes, received_bytes, num_received, transfer_ns, flight_ns;
  };
  // A Broadcast, Send or Recv that is under way.
  struct Transfer {
    OpContext op = {};
    OpKind kind = OpKind::kSend;  // as the caller named it
    RingKind ring = RingKind::kPair;
    int peer = 0;                     // of a pair, or the root
    const std::byte* from = nullptr;  // set for a writer
    std::byte* to = nullptr;          // set for a reader
    int64_t num_bytes = 0;
    int64_t done_bytes = 0;
    int64_t record = 0;  // in the flight recorder
  };

  // Every operation is Check(), Begin(), pieces, End().
  absl::Status Check(OpKind kind, int64_t count, int64_t ranks_in_buffer, DataType type, RedOp op,
                     Stream stream, bool has_pointers) const;
  absl::Status CheckPeer(OpKind kind, int peer) const;
  // Begins a collective; a deadline of zero is that of the options. The second is for all kinds.
  absl::Status Begin(OpHeader header, int64_t num_bytes, int64_t deadline_ns);
  void BeginTimed(OpKind kind, const OpHeader& header, int64_t num_bytes);
  absl::Status End(const absl::Status& status);
  absl::Status Usable() const;

  // Exchanges the piece in slot_ and takes in what came; then data_[r] is the piece of rank r.
  absl::Status Exchange(int64_t num_bytes, Spread spread);
  absl::Status ReduceInPieces(const std::byte* in, std::byte* out, int64_t count, Spread spread);
  absl::Status ScatterInPieces(const std::byte* in, std::byte* out, int64_t count, bool reduce);
  // Takes in a piece from `peer`: compares headers, waits for the injected link, counts. The link
  // is charged from `base_ns` on.
  absl::Status Receive(const OpContext& op, int peer, const Piece& piece, int64_t base_ns);
  absl::Status SleepUntil(const OpContext& op, int peer, int64_t at_ns);

  absl::Status RunTransfers(absl::Span<Transfer> transfers);
  bool CanMove(const Transfer& transfer);
  absl::Status MovePiece(Transfer& transfer);
  absl::Status PairTransfer(Transfer transfer, int64_t count, DataType type);

  // Remembers the first error, tells the peers, writes the log. Returns the first error.
  absl::Status Fail(const absl::Status& status) const;

  const CommOptions options_;
  const std::unique_ptr<Transport> transport_;
  FaultInjector faults_;

  OpContext op_;  // the running operation
  OpKind kind_ = OpKind::kBarrier;
  int64_t record_ = 0;                             // of it in the flight recorder
  int64_t last_entry_ns_ = 0;                      // when the last peer concerned entered it
  uint32_t seq_ = 0;                               // of collectives
  std::vector<uint32_t> sent_seq_, received_seq_;  // of pairs, by peer
  std::byte* slot_ = nullptr;
  std::vector<Piece> pieces_;           // by rank
  std::vector<const std::byte*> data_;  // by rank
  bool in_group_ = false;
  std::vector<Transfer> group_;

  std::array<OpCounters, kNumOpKinds> op_counters_;
  std::vector<PeerCounters> peer_counters_;
  Counter last_seq_, num_calls_, sent_bytes_, received_bytes_, wait_ns_, transfer_ns_;
  FlightRecorder flight_recorder_;

  // The first error. `failed_` lets operations look without the lock.
  mutable std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  mutable absl::Status failure_;
};

}  // namespace switchyard::comm
