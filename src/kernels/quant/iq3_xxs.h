// Format IQ3_XXS of GGUF files.
#pragma once

#include "kernels/quant/block.h"
#include "kernels/quant/codebooks.h"

namespace switchyard::kernels {

// 256 elements, 98 bytes: d half @0; qs u8[64] @2, indices into kIq3XxsCodebook, one for 4
// elements; a u32[8] @66, one for 32 elements: four 7-bit sign fields and a 4-bit scale on top.
// element i = (((d * (0.5 + scale)) * 0.5) * magnitude) * sign
struct Iq3Xxs {
  static constexpr DType kDType = DType::kIQ3_XXS;
  static constexpr int kBlockLength = 256;
  static constexpr int kBlockBytes = 98;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    const float d = LoadHalf(block);
    for (int j = 0; j < 8; ++j) {
      const uint32_t a = LoadU32(block + 66 + 4 * j);
      scales[2 * j] = scales[2 * j + 1] = d * (0.5f + static_cast<float>(a >> 28)) * 0.5f;
      for (int i = 0; i < 32; ++i) {
        const int magnitude = kIq3XxsCodebook[4 * block[2 + 8 * j + i / 4] + i % 4];
        const bool negative = Bit(ExtendSigns(a >> 7 * (i / 8) & 127), i % 8);
        values[32 * j + i] = static_cast<int8_t>(negative ? -magnitude : magnitude);
      }
    }
  }
};

}  // namespace switchyard::kernels
