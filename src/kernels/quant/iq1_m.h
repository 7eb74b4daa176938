// Format IQ1_M of GGUF files.
#pragma once

#include "kernels/quant/block.h"
#include "kernels/quant/codebooks.h"

namespace switchyard::kernels {

// 256 elements, 56 bytes: qs u8[32] @0, low eight bits of 32 indices into kIq1Codebook, one for 8
// elements; qh u8[16] @32, a nibble for 8 elements: three high index bits and the sign of the
// shift; sc u16[4] @48: 3-bit scales for 16 elements each, and the half d in the top nibbles.
// element i = (d * (2 * scale + 1)) * (value +- 1/8), expanded as in IQ1_S
struct Iq1M {
  static constexpr DType kDType = DType::kIQ1_M;
  static constexpr int kBlockLength = 256;
  static constexpr int kBlockBytes = 56;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    uint16_t packed[4];
    for (int j = 0; j < 4; ++j) packed[j] = LoadU16(block + 48 + 2 * j);
    const float d =
        HalfToFloat(static_cast<uint16_t>(packed[0] >> 12 | (packed[1] >> 8 & 0xf0) |
                                          (packed[2] >> 4 & 0xf00) | (packed[3] & 0xf000)));
    for (int h = 0; h < 16; ++h) {
      const int scale = packed[h / 4] >> 3 * (h % 4) & 7;
      scales[h] = d * static_cast<float>(2 * scale + 1) * 0.125f;
    }
    for (int i = 0; i < kBlockLength; ++i) {
      const int entry = i / 8;
      const int high = Nibble(block[32 + entry / 2], entry % 2);
      const int index = block[entry] | (high & 7) << 8;
      const int shift = high & 8 ? -1 : 1;
      values[i] = static_cast<int8_t>(8 * kIq1Codebook[8 * index + i % 8] + shift);
    }
  }
};

}  // namespace switchyard::kernels
