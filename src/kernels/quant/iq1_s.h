// Format IQ1_S of GGUF files.
#pragma once

#include "kernels/quant/block.h"
#include "kernels/quant/codebooks.h"

namespace switchyard::kernels {

// 256 elements, 50 bytes: d half @0; qs u8[32] @2, low eight bits of 32 indices into kIq1Codebook,
// one for 8 elements; qh u16[8] @34, one for 32 elements: four times three high index bits, a 3-bit
// scale and the sign of the shift.
// element i = (d * (2 * scale + 1)) * (value +- 1/8)
// Expanded as ((d * (2 * scale + 1)) / 8) * (8 * value +- 1): powers of two are exact.
struct Iq1S {
  static constexpr DType kDType = DType::kIQ1_S;
  static constexpr int kBlockLength = 256;
  static constexpr int kBlockBytes = 50;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    const float d = LoadHalf(block);
    for (int j = 0; j < 8; ++j) {
      const uint16_t high = LoadU16(block + 34 + 2 * j);
      const float scale = d * static_cast<float>(2 * (high >> 12 & 7) + 1);
      scales[2 * j] = scales[2 * j + 1] = scale * 0.125f;
      const int shift = Bit(high, 15) ? -1 : 1;
      for (int i = 0; i < 32; ++i) {
        const int index = block[2 + 4 * j + i / 8] | (high >> 3 * (i / 8) & 7) << 8;
        values[32 * j + i] = static_cast<int8_t>(8 * kIq1Codebook[8 * index + i % 8] + shift);
      }
    }
  }
};

}  // namespace switchyard::kernels
