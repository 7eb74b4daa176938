#include "app/synth/ple_constants.h"

#include <limits>
#include <numeric>

#include "app/synth/random_source.h"

namespace switchyard::app {
namespace {

bool IsPrime(uint64_t n) {
  if (n < 2) return false;
  for (uint64_t i = 2; i * i <= n; ++i) {
    if (n % i == 0) return false;
  }
  return true;
}

}  // namespace

std::vector<uint64_t> PleMultipliers(int count, int vocab_size) {
  constexpr uint64_t kSeed = 1234;
  const uint64_t half_bound = static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) /
                              static_cast<uint64_t>(vocab_size) / 2;
  std::vector<uint64_t> multipliers;
  for (int i = 0; i < count; ++i) {
    const uint64_t state = kSeed + kGoldenGamma * static_cast<uint64_t>(i + 1);
    multipliers.push_back(2 * (SplitMix64(state) % half_bound) + 1);
  }
  return multipliers;
}

std::vector<uint64_t> PrimesFrom(uint64_t start, int count) {
  std::vector<uint64_t> primes;
  for (uint64_t n = start; primes.size() < static_cast<size_t>(count); ++n) {
    if (IsPrime(n)) primes.push_back(n);
  }
  return primes;
}

std::vector<uint64_t> PrefixSums(const std::vector<uint64_t>& values) {
  std::vector<uint64_t> sums;
  uint64_t sum = 0;
  for (const uint64_t value : values) {
    sums.push_back(sum);
    sum += value;
  }
  return sums;
}

int64_t PleTableRows(const std::vector<uint64_t>& head_vocab_sizes) {
  constexpr uint64_t kPadding = 128;
  const uint64_t rows =
      std::accumulate(head_vocab_sizes.begin(), head_vocab_sizes.end(), uint64_t{0});
  return static_cast<int64_t>((rows + kPadding - 1) / kPadding * kPadding);
}

}  // namespace switchyard::app
