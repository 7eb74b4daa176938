#include "app/bench/bandwidth_probe.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "app/exit_code.h"
#include "base/process_memory.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "kernels/cpu/read_bandwidth.h"

namespace switchyard::app {
namespace {

// Long enough that each stream crosses many pages, short enough that threads end together.
constexpr int64_t kTaskBytes = int64_t{8} << 20;
constexpr int64_t kWordsPerTask = kTaskBytes / 8;

// Word i of the array is (i + 1) * kStep. A sum of any other set of words differs, but for luck.
constexpr uint64_t kStep = 0x9e3779b97f4a7c15;  // odd, so that words are distinct

// Sum of the words of one task, modulo 2^64.
uint64_t ExpectedSum(int64_t task) {
  const auto first = static_cast<uint64_t>(task * kWordsPerTask + 1);
  constexpr auto kCount = static_cast<uint64_t>(kWordsPerTask);
  return kStep * (kCount * first + kCount * (kCount - 1) / 2);
}

}  // namespace

int64_t BandwidthProbe::DefaultBytes(const MachineDescription& machine) {
  return std::max(int64_t{1} << 30, 4 * machine.last_level_cache_bytes());
}

BandwidthProbe::BandwidthProbe(Arena arena, int64_t bytes, int num_streams)
    : arena_(std::move(arena)),
      data_(arena_.Allocate(bytes)),
      bytes_(bytes),
      num_streams_(num_streams) {}

absl::StatusOr<BandwidthProbe> BandwidthProbe::Create(const Options& options, TimedPool& pool) {
  int64_t bytes = options.bytes;
  if (bytes == 0) bytes = DefaultBytes(ReadMachineDescription("/"));
  const int64_t num_tasks = (bytes + kTaskBytes - 1) / kTaskBytes;
  bytes = num_tasks * kTaskBytes;
  const auto available = AvailableHostBytes();
  if (available && bytes > *available / 2) {
    return WithExitCode(
        ResourceExhausted("the array to read would take more than half of the free memory, "
                          "wanted bytes: {}, free: {}",
                          bytes, *available),
        ExitCode::kHardwareUnfit);
  }
  SWITCHYARD_ASSIGN_OR_RETURN(Arena arena,
                              Arena::Create(bytes, {.huge_pages = options.huge_pages}));
  BandwidthProbe probe(std::move(arena), bytes, options.num_streams);
  pool.pool().ParallelFor(num_tasks, [&](int64_t task, int) {
    auto* words = reinterpret_cast<uint64_t*>(probe.data_ + task * kTaskBytes);
    for (int64_t i = 0; i < kWordsPerTask; ++i) {
      words[i] = static_cast<uint64_t>(task * kWordsPerTask + i + 1) * kStep;
    }
  });
  return probe;
}

int64_t BandwidthProbe::BytesOfRead(int64_t bytes) const {
  if (bytes == 0) return bytes_;
  return std::min((bytes + kTaskBytes - 1) / kTaskBytes * kTaskBytes, bytes_);
}

absl::StatusOr<StageTime> BandwidthProbe::Read(TimedPool& pool, kernels::cpu::CpuLevel level,
                                               int64_t bytes) {
  const int64_t num_tasks = bytes_ / kTaskBytes;
  const int64_t count = BytesOfRead(bytes) / kTaskBytes;
  const int64_t first = next_task_;
  next_task_ = (first + count) % num_tasks;
  std::atomic<uint64_t> sum{0};
  const StageTime time = pool.Run(count, [&](int64_t i, int) {
    const int64_t task = (first + i) % num_tasks;
    sum.fetch_add(
        kernels::cpu::SumWords(level, data_ + task * kTaskBytes, kTaskBytes, num_streams_),
        std::memory_order_relaxed);
  });
  uint64_t expected = 0;
  for (int64_t i = 0; i < count; ++i) expected += ExpectedSum((first + i) % num_tasks);
  if (sum.load() != expected) {
    return Internal("the sum of the array is wrong, wanted: {}, got: {}", expected, sum.load());
  }
  return time;
}

}  // namespace switchyard::app
