// Communicator: one rank's end of a group that exchanges tensors and step headers, and what creates
// one. The same contract holds for every backend.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace switchyard::comm {

enum class DataType : uint8_t { kF32, kF16, kBF16, kI32, kU8 };
enum class RedOp : uint8_t { kSum, kMax };

enum class MemSpace : uint8_t {
  kHost,        // ordinary memory
  kHostPinned,  // page-locked: a GPU can read it
  kDevice,      // GPU memory
};

// How a rank waits for others on the CPU. No policy spins without an end: a spinning thread may
// hold the core that the awaited peer needs.
enum class WaitPolicy : uint8_t {
  kAuto,   // kSpin if all threads that compute on this host fit its usable CPUs, else kBlock
  kSpin,   // spin for at most 20 us, then sleep; stops trying while spinning does not help
  kBlock,  // sleep at once
};

enum class BackendKind : uint8_t {
  kLocal,    // ranks are threads of one process
  kShm,      // processes of one host, POSIX shared memory
  kUcx,      // processes of any hosts, UCX
  kNccl,     // GPUs, NCCL
  kHostmap,  // GPUs of one host, pinned host memory that all of them map
  kP2p,      // GPUs of one host, peer access
};

enum class OpKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kAllToAll,
  kSend,
  kRecv,
  kBarrier,
};
inline constexpr int kNumOpKinds = 9;

int64_t BytesOf(DataType type);  // of one element
std::string_view Name(DataType type);
std::string_view Name(RedOp op);
std::string_view Name(BackendKind kind);
std::string_view Name(OpKind kind);

// Where an operation is ordered. Null is the host: the operation runs on the calling thread and is
// complete when the call returns. Backends with device buffers take their device's stream.
struct Stream {
  void* native = nullptr;
};

struct CommOptions {
  std::string group_id = "";       // the model instance
  std::string channel = "tensor";  // tells apart the communicators of one group ("control")
  uint64_t epoch = 0;              // of the group's membership; fences stale members
  int rank = 0;
  int nranks = 1;
  absl::Duration init_timeout = absl::Seconds(30);
  // Of one operation. absl::InfiniteDuration() is allowed, for followers on a control channel: they
  // wait for the next header as long as nothing is generated. Dead peers and Abort() end that too.
  absl::Duration op_timeout = absl::Seconds(3);
  WaitPolicy wait = WaitPolicy::kAuto;
  // Threads of this rank that compute, the one that issues operations included.
  int num_compute_threads = 1;
  // Bytes of one piece; what is larger goes in several. A multiple of 128; all ranks alike. shm
  // takes nranks * (8 + nranks * num_slots) * slot_bytes of /dev/shm for each channel: 10 MiB for
  // four ranks, 36 MiB for eight. A channel for small messages does with less.
  int64_t slot_bytes = 64 * 1024;
  // How many pieces a root of Broadcast(), or a sender, may be ahead of its slowest reader.
  int num_slots = 8;
  std::string fault_rules = "";  // for tests and experiments: see fault_injector.h; empty = none
};

struct Capabilities {
  bool device_buffers = false;
  bool graph_capture = false;
  bool deterministic_sum = false;  // all ranks get the same bits, on every run
  int64_t max_inline_bytes = 0;    // payloads up to this size take one exchange
};

// What a rank has done so far, since the communicator was created. Subtract two to get a step's
// share. Seconds are those of the issuing thread.
struct CommTotals {
  int64_t num_calls = 0;
  int64_t sent_bytes = 0;       // payload for peers, once for each peer that gets it
  int64_t received_bytes = 0;   // payload read from peers
  double wait_seconds = 0;      // until the last peer concerned had entered the operation too
  double transfer_seconds = 0;  // the rest: moving bytes, summing, links, wake-ups
};

// One direction of one pair: what this rank sent to a peer, and what it received from it.
struct PeerTotals {
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
  int64_t num_received = 0;  // pieces
  // The part of CommTotals::transfer_seconds that the link from the peer took: from when all ranks
  // concerned were in the operation until the peer's data was here. Links work in parallel, so the
  // parts of several may overlap.
  double transfer_seconds = 0;
  // Time on the way, summed over all pieces, also where this rank came later and did not notice.
  // Divided by num_received it is the latency of the link.
  double flight_seconds = 0;
};

struct OpStats {
  int64_t num_calls = 0;
  int64_t num_bytes = 0;  // of the caller's buffers: count * element size, times ranks where so
  double wait_seconds = 0;
  double transfer_seconds = 0;
  // Calls by total time: entry i counts those of less than 2^i us (and at least half of that); the
  // last entry counts all longer ones.
  std::array<int64_t, 24> time_histogram = {};
};

struct CommStats {
  std::array<OpStats, kNumOpKinds> ops;  // by OpKind
  std::vector<PeerTotals> peers;         // by rank; the own entry stays zero
  CommTotals totals;
  uint64_t last_seq = 0;  // sequence number of the last operation that was begun
};

// Keeps memory known to a backend. Destroying it is collective: all ranks, same order.
class Registration {
 public:
  virtual ~Registration() = default;
};

// One rank's end of a group.
//
// Matching: all ranks issue the same operations with the same kind, count, datatype, redop and root
//           in the same order; Send and Recv match between their two ranks. A mismatch fails with
//           FAILED_PRECONDITION and names both ranks.
// Sums:     added in FP32 by a fixed binary tree over ranks (neighbours first, an odd one is
// carried
//           up: (0+1)+2, (0+1)+(2+3)), rounded once; all ranks get the same bits. Integers wrap.
// Counts:   elements; zero is allowed, moves nothing and takes a sequence number.
// Buffers:  belong to the caller, valid and unmodified until the stream has passed the operation.
//           in == out is allowed for AllReduce, Reduce, ReduceScatter and AllToAll, and for
//           AllGather in == out + rank * count_per_rank.
// Threads:  one thread issues operations; Health(), Stats(), totals and Abort() from any thread.
// Errors:   INVALID_ARGUMENT leaves the communicator usable. All others are sticky: every later
// call
//           returns the first error at once. FAILED_PRECONDITION (mismatch between ranks, misuse),
//           DEADLINE_EXCEEDED (op_timeout), UNAVAILABLE (a peer or link is gone; names the rank),
//           ABORTED (Abort() here or on a peer, or stale epoch), INTERNAL (the backend's own
//           error). Recovery is a new communicator with a higher epoch.
// Steady state: shm and local allocate nothing per operation.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int nranks() const { return nranks_; }
  uint64_t epoch() const { return epoch_; }
  BackendKind backend() const { return backend_; }
  virtual Capabilities caps() const = 0;

  // Makes memory known to the backend. Collective: all ranks, same order.
  virtual absl::StatusOr<std::unique_ptr<Registration>> Register(void* ptr, int64_t num_bytes,
                                                                 MemSpace space) = 0;

  // Shapes: in and out [count]. out = the sum (or maximum) over ranks, on all ranks.
  virtual absl::Status AllReduce(const void* in, void* out, int64_t count, DataType type, RedOp op,
                                 Stream stream = {}) = 0;
  // Shapes: in [count_per_rank], out [nranks, count_per_rank].
  virtual absl::Status AllGather(const void* in, void* out, int64_t count_per_rank, DataType type,
                                 Stream stream = {}) = 0;
  // Shapes: in [nranks, count_per_rank], out [count_per_rank] = row `rank` of the sum over ranks.
  virtual absl::Status ReduceScatter(const void* in, void* out, int64_t count_per_rank,
                                     DataType type, RedOp op, Stream stream = {}) = 0;
  // Shapes: buffer [count], read on root, written elsewhere. The root does not wait for readers
  // until num_slots pieces are unread.
  virtual absl::Status Broadcast(void* buffer, int64_t count, DataType type, int root,
                                 Stream stream = {}) = 0;
  // Shapes: in and out [count]; out is written on root only and may be null elsewhere.
  virtual absl::Status Reduce(const void* in, void* out, int64_t count, DataType type, RedOp op,
                              int root, Stream stream = {}) = 0;
  // Shapes: in and out [nranks, count_per_peer]; row p of in goes to row `rank` of p's out.
  virtual absl::Status AllToAll(const void* in, void* out, int64_t count_per_peer, DataType type,
                                Stream stream = {}) = 0;

  // One piece after the other from this rank to a peer, in order. A sender does not wait for the
  // receiver until num_slots pieces are unread.
  virtual absl::Status Send(const void* buffer, int64_t count, DataType type, int peer,
                            Stream stream = {}) = 0;
  virtual absl::Status Recv(void* buffer, int64_t count, DataType type, int peer,
                            Stream stream = {}) = 0;
  // Send and Recv between the two are carried out together at GroupEnd() and cannot block each
  // other, whatever their sizes. At most 64 of them; nothing else may be called between.
  virtual absl::Status GroupStart() = 0;
  virtual absl::Status GroupEnd() = 0;

  // Blocks until all ranks are here. Passing the deadline fails the communicator.
  virtual absl::Status Barrier(absl::Time deadline) = 0;
  // Blocks until the stream is empty, or an error, or the deadline. The host stream is always
  // empty.
  virtual absl::Status Wait(Stream stream, absl::Time deadline) = 0;

  // The first error, OK if there is none. Never blocks.
  virtual absl::Status Health() const = 0;
  // Fails this communicator with ABORTED and the message of `reason`, and releases threads that
  // wait in an operation, here and on the peers. Does nothing on a failed one. Never blocks.
  virtual void Abort(const absl::Status& reason) = 0;

  // A copy of all counters; allocates.
  virtual CommStats Stats() const = 0;
  // The same in part, cheap enough for every step. REQUIRES: 0 <= peer < nranks.
  virtual CommTotals Totals() const = 0;
  virtual PeerTotals TotalsOfPeer(int peer) const = 0;

 protected:
  Communicator(const CommOptions& options, BackendKind backend)
      : rank_(options.rank), nranks_(options.nranks), epoch_(options.epoch), backend_(backend) {}

 private:
  const int rank_;
  const int nranks_;
  const uint64_t epoch_;
  const BackendKind backend_;
};

// How ranks find each other before they have a communicator: an all-gather of small blobs.
//
// Threads: one call at a time for each rank.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  // Returns the blobs of all ranks, by rank, once all have called with the same key. Blobs have a
  // few hundred bytes and may hold any byte. Keys are used once for each epoch.
  //
  // Errors: DEADLINE_EXCEEDED naming ranks that did not come, ABORTED if the epoch is over.
  virtual absl::StatusOr<std::vector<std::string>> Exchange(std::string_view key,
                                                            const std::string& mine,
                                                            absl::Time deadline) = 0;
};

// Creates this rank's end. Blocks until all ranks have created theirs, init_timeout at most.
//
// Errors: INVALID_ARGUMENT (options), UNIMPLEMENTED (backend not in this build), RESOURCE_EXHAUSTED
//         (no room in /dev/shm), DEADLINE_EXCEEDED (a rank did not come), ABORTED (stale epoch),
//         FAILED_PRECONDITION (ranks with other options or on other hosts).
absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(BackendKind kind,
                                                                 const CommOptions& options,
                                                                 Rendezvous& rendezvous);

}  // namespace switchyard::comm
