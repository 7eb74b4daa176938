// Philox4x32-10: a counter-based random generator. A draw is a pure function of key and counter,
// so it does not depend on what else was drawn, or in which order.
#pragma once

#include <array>
#include <cstdint>

namespace switchyard::worker {

// Returns the block of four random words for `counter` under `key`.
// Source: Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.3.
inline std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// Returns a uniform number in [0, 1) for the token at `position` of a sequence with `seed`.
inline double UniformDraw(uint64_t seed, uint64_t position) {
  const std::array<uint32_t, 4> words =
      Philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (static_cast<uint64_t>(words[0]) << 32) | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace switchyard::worker
