// Format IQ4_XS of GGUF files.
#pragma once

#include "kernels/quant/block.h"
#include "kernels/quant/codebooks.h"

namespace switchyard::kernels {

// 256 elements, 136 bytes: d half @0; sh u16 @2 and sl u8[4] @4, the high two and low four bits of
// eight scales; qs u8[128] @8, 16 bytes for each 32 elements, low nibbles first.
// element i = (d * (scale - 32)) * kIq4Values[nibble]
struct Iq4Xs {
  static constexpr DType kDType = DType::kIQ4_XS;
  static constexpr int kBlockLength = 256;
  static constexpr int kBlockBytes = 136;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    const float d = LoadHalf(block);
    const uint16_t high = LoadU16(block + 2);
    for (int j = 0; j < 8; ++j) {
      const int scale = (Nibble(block[4 + j / 2], j % 2) | (high >> 2 * j & 3) << 4) - 32;
      scales[2 * j] = scales[2 * j + 1] = d * static_cast<float>(scale);
      for (int i = 0; i < 32; ++i) {
        values[32 * j + i] = kIq4Values[Nibble(block[8 + 16 * j + i % 16], i / 16)];
      }
    }
  }
};

}  // namespace switchyard::kernels
