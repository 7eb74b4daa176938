// Format IQ2_S of GGUF files.
#pragma once

#include "kernels/quant/block.h"
#include "kernels/quant/codebooks.h"

namespace switchyard::kernels {

// 256 elements, 82 bytes: d half @0; qs u8[32] @2 and qh u8[8] @66, low eight and high two bits of
// 32 indices into kIq2SCodebook, one for 8 elements; signs u8[32] @34, a bit for each element; sc
// u8[8] @74, a nibble for each 16 elements.
// element i = (((d * (0.5 + nibble)) * 0.25) * magnitude) * sign
struct Iq2S {
  static constexpr DType kDType = DType::kIQ2_S;
  static constexpr int kBlockLength = 256;
  static constexpr int kBlockBytes = 82;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    const float d = LoadHalf(block);
    for (int h = 0; h < 16; ++h) {
      scales[h] = d * (0.5f + static_cast<float>(Nibble(block[74 + h / 2], h % 2))) * 0.25f;
    }
    for (int i = 0; i < kBlockLength; ++i) {
      const int entry = i / 8;
      const int index = block[2 + entry] | (block[66 + i / 32] >> 2 * (entry % 4) & 3) << 8;
      const int magnitude = kIq2SCodebook[8 * index + i % 8];
      const bool negative = Bit(block[34 + entry], i % 8);
      values[i] = static_cast<int8_t>(negative ? -magnitude : magnitude);
    }
  }
};

}  // namespace switchyard::kernels
