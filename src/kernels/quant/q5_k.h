// Format Q5_K of GGUF files.
#pragma once

#include "kernels/quant/block.h"
#include "kernels/quant/k_scales.h"

namespace switchyard::kernels {

// 256 elements, 176 bytes: d half @0; dmin half @2; sc u8[12] @4, eight 6-bit scales and minima
// (k_scales.h); qh u8[32] @16: bit j of byte i is the fifth bit of element 32 * j + i; qs u8[128]
// @48, nibbles as in Q4_K.
// element i = (d * scale) * q - dmin * minimum
struct Q5K {
  static constexpr DType kDType = DType::kQ5_K;
  static constexpr int kBlockLength = 256;
  static constexpr int kBlockBytes = 176;
  static constexpr bool kHasMinimum = true;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* minima) {
    const float d = LoadHalf(block);
    const float dmin = LoadHalf(block + 2);
    uint8_t s[8];
    uint8_t m[8];
    UnpackKScales(block + 4, s, m);
    for (int j = 0; j < 8; ++j) {
      scales[2 * j] = scales[2 * j + 1] = d * static_cast<float>(s[j]);
      minima[2 * j] = minima[2 * j + 1] = -(dmin * static_cast<float>(m[j]));
      for (int i = 0; i < 32; ++i) {
        const int low = Nibble(block[48 + 32 * (j / 2) + i], j % 2);
        values[32 * j + i] = static_cast<int8_t>(low + 16 * Bit(block[16 + i], j));
      }
    }
  }
};

}  // namespace switchyard::kernels
