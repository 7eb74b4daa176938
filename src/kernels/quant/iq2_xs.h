// Format IQ2_XS of GGUF files.
#pragma once

#include "kernels/quant/block.h"
#include "kernels/quant/codebooks.h"

namespace switchyard::kernels {

// 256 elements, 74 bytes: d half @0; v u16[32] @2, one for 8 elements: 9-bit index into
// kIq2XsCodebook and a 7-bit sign field on top; sc u8[8] @66, a nibble for each 16 elements.
// element i = (((d * (0.5 + nibble)) * 0.25) * magnitude) * sign
struct Iq2Xs {
  static constexpr DType kDType = DType::kIQ2_XS;
  static constexpr int kBlockLength = 256;
  static constexpr int kBlockBytes = 74;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    const float d = LoadHalf(block);
    for (int h = 0; h < 16; ++h) {
      scales[h] = d * (0.5f + static_cast<float>(Nibble(block[66 + h / 2], h % 2))) * 0.25f;
    }
    for (int i = 0; i < kBlockLength; ++i) {
      const uint16_t v = LoadU16(block + 2 + 2 * (i / 8));
      const int magnitude = kIq2XsCodebook[8 * (v & 511) + i % 8];
      const bool negative = Bit(ExtendSigns(v >> 9), i % 8);
      values[i] = static_cast<int8_t>(negative ? -magnitude : magnitude);
    }
  }
};

}  // namespace switchyard::kernels
