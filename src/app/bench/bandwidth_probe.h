// The read bandwidth of this machine's memory: the limit that decoding is compared with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

#include "app/bench/machine_description.h"
#include "app/bench/timed_pool.h"
#include "base/arena.h"
#include "kernels/cpu/cpu_features.h"

namespace switchyard::app {

// An array to read, larger than all caches.
class BandwidthProbe {
 public:
  struct Options {
    int64_t bytes = 0;       // 0 = DefaultBytes()
    int num_streams = 4;     // of each thread; 1, 2, 4 or 8. Four were fastest on Zen 5
    bool huge_pages = true;  // as for weights
  };

  // 1 GiB, or four times the last-level cache if that is more.
  static int64_t DefaultBytes(const MachineDescription& machine);

  // Fills the array on `pool`, so that each thread touches about what it will read.
  //
  // Errors: kResourceExhausted if it would take more than half of the available memory.
  static absl::StatusOr<BandwidthProbe> Create(const Options& options, TimedPool& pool);

  // Reads `bytes` of the array (0 = all of it), going on where the last call ended. The pieces are
  // tasks of some MiB.
  //
  // Errors: kInternal if the sum is not what was written: not everything was read.
  absl::StatusOr<StageTime> Read(TimedPool& pool, kernels::cpu::CpuLevel level, int64_t bytes = 0);

  int64_t bytes() const { return bytes_; }
  int num_streams() const { return num_streams_; }

  // What Read() reads of `bytes` that are asked for: whole tasks, all of the array at most.
  int64_t BytesOfRead(int64_t bytes) const;

 private:
  BandwidthProbe(Arena arena, int64_t bytes, int num_streams);

  Arena arena_;
  std::byte* data_;
  int64_t bytes_;
  int num_streams_;
  int64_t next_task_ = 0;
};

}  // namespace switchyard::app
