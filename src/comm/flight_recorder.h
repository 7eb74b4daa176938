// The last operations of a rank, for the log after a failure.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport.h"

namespace switchyard::comm {

// One operation as it was recorded. Times are NowNs(); 0 = it has not come so far.
struct FlightRecord {
  uint32_t seq = 0;
  OpKind kind = OpKind::kBarrier;
  int64_t num_bytes = 0;
  int64_t enqueue_ns = 0;  // the call
  int64_t start_ns = 0;    // all ranks concerned were in it
  int64_t end_ns = 0;
};

// Keeps the last kCapacity operations.
//
// Threads: one records; any may read, and may see the newest operation half written.
class FlightRecorder {
 public:
  static constexpr int64_t kCapacity = 1024;

  FlightRecorder();

  // Begins a record and returns its number, with which End() completes it.
  int64_t Begin(uint32_t seq, OpKind kind, int64_t num_bytes, int64_t enqueue_ns);
  void End(int64_t number, int64_t start_ns, int64_t end_ns);

  // Oldest first; at most `most`.
  std::vector<FlightRecord> Last(int64_t most) const;

 private:
  struct Entry {
    std::atomic<uint64_t> op{0};  // seq in the low half, kind above
    std::atomic<int64_t> num_bytes{0};
    std::atomic<int64_t> enqueue_ns{0};
    std::atomic<int64_t> start_ns{0};
    std::atomic<int64_t> end_ns{0};
  };

  std::unique_ptr<Entry[]> entries_;
  std::atomic<int64_t> num_recorded_{0};
};

// "all_reduce #12, 10240 bytes, 1.250 ms ago, waited 0.012 ms, took 0.003 ms" or, without an end,
// "... not finished".
std::string Describe(const FlightRecord& record, int64_t now_ns);

}  // namespace switchyard::comm
