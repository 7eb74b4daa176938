// Format IQ3_S of GGUF files.
#pragma once

#include "kernels/quant/block.h"
#include "kernels/quant/codebooks.h"

namespace switchyard::kernels {

// 256 elements, 110 bytes: d half @0; qs u8[64] @2 and qh u8[8] @66, low eight bits and ninth bit
// of 64 indices into kIq3SCodebook, one for 4 elements; signs u8[32] @74, a bit for each element;
// sc u8[4] @106, a nibble for each 32 elements.
// element i = ((d * (1 + 2 * nibble)) * magnitude) * sign
struct Iq3S {
  static constexpr DType kDType = DType::kIQ3_S;
  static constexpr int kBlockLength = 256;
  static constexpr int kBlockBytes = 110;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    const float d = LoadHalf(block);
    for (int j = 0; j < 8; ++j) {
      const int scale = 1 + 2 * Nibble(block[106 + j / 2], j % 2);
      scales[2 * j] = scales[2 * j + 1] = d * static_cast<float>(scale);
      for (int i = 0; i < 32; ++i) {
        const int index = block[2 + 8 * j + i / 4] | Bit(block[66 + j], i / 4) << 8;
        const int magnitude = kIq3SCodebook[4 * index + i % 4];
        const bool negative = Bit(block[74 + 4 * j + i / 8], i % 8);
        values[32 * j + i] = static_cast<int8_t>(negative ? -magnitude : magnitude);
      }
    }
  }
};

}  // namespace switchyard::kernels
