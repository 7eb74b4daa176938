// Format Q2_K of GGUF files.
#pragma once

#include "kernels/quant/block.h"

namespace switchyard::kernels {

// 256 elements, 84 bytes: scales u8[16] @0, low nibble scale, high nibble minimum, for 16 elements
// each; qs u8[64] @16, two bits each; d half @80; dmin half @82.
// element i = (d * scale) * q - dmin * minimum
struct Q2K {
  static constexpr DType kDType = DType::kQ2_K;
  static constexpr int kBlockLength = 256;
  static constexpr int kBlockBytes = 84;
  static constexpr bool kHasMinimum = true;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* minima) {
    const float d = LoadHalf(block + 80);
    const float dmin = LoadHalf(block + 82);
    for (int h = 0; h < 16; ++h) {
      scales[h] = d * static_cast<float>(block[h] & 15);
      minima[h] = -(dmin * static_cast<float>(block[h] >> 4));
    }
    for (int i = 0; i < kBlockLength; ++i) {
      const int shift = 2 * (i % 128 / 32);
      values[i] = static_cast<int8_t>(block[16 + 32 * (i / 128) + i % 32] >> shift & 3);
    }
  }
};

}  // namespace switchyard::kernels
