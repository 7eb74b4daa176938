// What a CPU backend does for HostCommunicator: pieces of operations from rank to rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

#include "comm/communicator.h"

namespace switchyard::comm {

// Travels with every piece, so that ranks which issue different operations find out at the first.
struct OpHeader {
  uint32_t seq = 0;  // of the collective; for Send and Recv: of the messages of this ordered pair
  OpKind kind = OpKind::kBarrier;  // kSend for Recv too
  DataType type = DataType::kU8;
  RedOp redop = RedOp::kSum;
  uint8_t root = 0;
  int64_t count = 0;

  bool operator==(const OpHeader&) const = default;
};
static_assert(sizeof(OpHeader) == 16);

// The operation that a rank is in. Times are NowNs().
struct OpContext {
  OpHeader header;
  int64_t entry_ns = 0;     // when the rank entered it
  int64_t deadline_ns = 0;  // when it fails
};

// A piece that came from a rank.
struct Piece {
  const std::byte* data = nullptr;
  OpHeader header;
  int64_t num_bytes = 0;
  int64_t entry_ns = 0;    // when the sender entered the operation, in this rank's time
  int64_t publish_ns = 0;  // when the sender let it go
  int64_t arrived_ns = 0;  // when it was here; publish_ns if this rank noticed it only later
};

// Who gets what of a rank's piece in an exchange.
enum class Spread : uint8_t {
  kToAll,     // everybody all of it
  kToRoot,    // the root all of it, the others an empty piece
  kPersonal,  // rank r the r-th of nranks equal parts
};

// Ordered streams of pieces, with credits: a writer runs ahead of its readers by a fixed number.
enum class RingKind : uint8_t {
  kBroadcast,  // from one rank to all others
  kPair,       // from one rank to one other
};

// Moves pieces. One object for each rank.
//
// Threads: one, but Aborted(), LookForAbort() and Abort() from any.
// Errors:  as Communicator's; the transport does not remember them.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual int64_t exchange_bytes() const = 0;  // most of one piece of an exchange
  virtual int64_t ring_bytes() const = 0;      // most of one piece of a ring

  // Tells peers which operation this rank is in, so that one that waits in another can say so.
  virtual void Announce(const OpHeader& header) = 0;

  // Points `slot` to room for this rank's next piece; may wait until the room is free.
  virtual absl::Status BeginExchange(const OpContext& op, std::byte** slot) = 0;
  // Publishes `num_bytes` of the slot and waits for the pieces of all ranks. pieces[r] is that of
  // rank r, the own included; data is valid until the next BeginExchange().
  virtual absl::Status FinishExchange(const OpContext& op, int64_t num_bytes, Spread spread,
                                      absl::Span<Piece> pieces) = 0;

  // True if Put() has room. `peer` is ignored for a broadcast.
  virtual bool CanPut(RingKind ring, int peer) = 0;
  // Copies a piece into the ring. REQUIRES: CanPut().
  virtual absl::Status Put(const OpContext& op, RingKind ring, int peer, const void* data,
                           int64_t num_bytes) = 0;
  // True, and `piece` set, if the next piece from `peer` is here. It stays until Release().
  virtual bool Peek(RingKind ring, int peer, Piece* piece) = 0;
  virtual void Release(RingKind ring, int peer) = 0;

  // Sleeps until `ready` holds, a ring changed in between. `awaited` are the ranks (bits) that are
  // named if the deadline passes.
  virtual absl::Status WaitUntil(const OpContext& op, uint64_t awaited,
                                 absl::FunctionRef<bool()> ready) = 0;

  // The status with which a rank aborted the group, OK if none did. Never blocks.
  virtual absl::Status Aborted() = 0;
  // The same after a look at what has come from peers, where that takes more than a load.
  virtual absl::Status LookForAbort() { return Aborted(); }
  // Releases all ranks with `reason`; only the first reason counts. Never blocks.
  virtual void Abort(const absl::Status& reason) = 0;
};

// How operations and sets of ranks are called in messages: "all_reduce #12 (f32, sum, count 2560)",
// "ranks 1, 3".
std::string Describe(const OpHeader& header);
std::string DescribeRanks(uint64_t ranks);

// The error of two ranks in different operations.
absl::Status MismatchError(int rank, const OpHeader& mine, int peer, const OpHeader& theirs);
// The error of an operation whose deadline passed while `awaited` were missing.
absl::Status TimeoutError(const OpContext& op, int64_t now_ns, uint64_t awaited);

}  // namespace switchyard::comm
