#include "base/thread_calibration.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSweepTime(20);
constexpr double kNearBest = 0.97;

// A stage should take about a millisecond: long beside a fork-join, short beside the sweep. A core
// reads 5 to 30 GB/s.
constexpr int64_t kPartBytes = 1 << 20;
constexpr int64_t kPartsPerThread = 16;

// In as many chains as a core can have loads under way.
uint64_t Sum(const std::byte* data, int64_t num_bytes) {
  constexpr int kChains = 8;
  uint64_t sums[kChains] = {};
  for (int64_t at = 0; at + 8 * kChains <= num_bytes; at += 8 * kChains) {
    uint64_t words[kChains];
    std::memcpy(words, data + at, sizeof(words));
    for (int i = 0; i < kChains; ++i) sums[i] += words[i];
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

// Walks around in the memory part by part.
class Walk {
 public:
  explicit Walk(absl::Span<const std::byte> memory)
      : memory_(memory), num_parts_((Bytes() + kPartBytes - 1) / kPartBytes) {}

  // Reads the next `num_parts` parts on the pool; returns the number of bytes.
  int64_t ReadOn(ThreadPool& pool, int64_t num_parts) {
    std::atomic<int64_t> num_bytes{0};
    pool.ParallelFor(num_parts, [&](int64_t task, int) {
      const int64_t begin = (next_ + task) % num_parts_ * kPartBytes;
      const int64_t size = std::min(kPartBytes, Bytes() - begin);
      sink_.fetch_xor(Sum(memory_.data() + begin, size), std::memory_order_relaxed);
      num_bytes.fetch_add(size, std::memory_order_relaxed);
    });
    next_ = (next_ + num_parts) % num_parts_;
    return num_bytes.load();
  }

 private:
  int64_t Bytes() const { return static_cast<int64_t>(memory_.size()); }

  const absl::Span<const std::byte> memory_;
  const int64_t num_parts_;
  int64_t next_ = 0;
  std::atomic<uint64_t> sink_{0};  // so that the reads are of use
};

}  // namespace

std::vector<int> SweepCounts(int most) {
  std::vector<int> counts;
  const auto add = [&](int count) {
    if (count < most) counts.push_back(count);
  };
  add(1);
  for (int low = 2; low < most; low *= 2) {
    add(low);
    if (low > 2) add(low + low / 2);
  }
  counts.push_back(most);
  return counts;
}

std::vector<ThreadRate> MeasureThreadRates(ThreadPool& pool, absl::Span<const std::byte> memory,
                                           absl::Span<const int> counts) {
  SWITCHYARD_CHECK(!memory.empty());
  const int before = pool.num_running();
  Walk walk(memory);
  std::vector<ThreadRate> rates;
  for (const int count : counts) {
    pool.SetNumRunning(count);
    walk.ReadOn(pool, count);  // wakes them
    const auto start = Clock::now();
    // The best stage is one without disturbance from outside.
    double best = 0;
    for (auto stage = start; stage - start < kSweepTime;) {
      const int64_t num_bytes = walk.ReadOn(pool, count * kPartsPerThread);
      const auto end = Clock::now();
      const std::chrono::duration<double> elapsed = end - stage;
      if (elapsed.count() > 0) {
        best = std::max(best, static_cast<double>(num_bytes) / elapsed.count());
      }
      stage = end;
    }
    rates.push_back({count, best});
  }
  pool.SetNumRunning(before);
  return rates;
}

int LeastOfBestThreads(absl::Span<const ThreadRate> rates) {
  SWITCHYARD_CHECK(!rates.empty());
  double best = 0;
  for (const ThreadRate& rate : rates) best = std::max(best, rate.bytes_per_second);
  int least = 0;
  for (const ThreadRate& rate : rates) {
    if (rate.bytes_per_second < kNearBest * best) continue;
    if (least == 0 || rate.num_threads < least) least = rate.num_threads;
  }
  return least;
}

}  // namespace switchyard
