// Pseudo-random numbers that are the same on every machine.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace switchyard::app {

inline constexpr uint64_t kGoldenGamma = 0x9E3779B97F4A7C15;

// One output of the generator splitmix64 whose state is `state`.
// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
inline uint64_t SplitMix64(uint64_t state) {
  uint64_t z = state + kGoldenGamma;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}

// The generator xoshiro256++.
// Source: Blackman, Vigna, "Scrambled linear pseudorandom number generators", 2021.
class RandomSource {
 public:
  // Sources of different seeds or names are independent of each other.
  RandomSource(uint64_t seed, std::string_view name) {
    uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    uint64_t state = SplitMix64(seed) ^ hash;
    for (uint64_t& word : state_) word = SplitMix64(state += kGoldenGamma);
  }

  uint64_t Next() {
    const uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // In [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // Mean 0, deviation 1, close to normal: the sum of eight 16-bit uniform numbers, so that no
  // library function decides about the last bit. |value| < 4.9.
  float Normal() {
    uint32_t sum = 0;
    for (int i = 0; i < 2; ++i) {
      const uint64_t word = Next();
      sum += static_cast<uint32_t>((word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) +
                                   (word >> 48));
    }
    constexpr float kMean = 8 * 32767.5f;
    constexpr float kDeviation = 53509.90f;  // sqrt(8 * (2^32 - 1) / 12)
    return (static_cast<float>(sum) - kMean) * (1 / kDeviation);
  }

 private:
  uint64_t state_[4];
};

}  // namespace switchyard::app
