// Format IQ2_XXS of GGUF files.
#pragma once

#include "kernels/quant/block.h"
#include "kernels/quant/codebooks.h"

namespace switchyard::kernels {

// 256 elements, 66 bytes: d half @0; then for each 32 elements four u8 indices into
// kIq2XxsCodebook, one for 8 elements, and a u32: four 7-bit sign fields and a 4-bit scale on top.
// element i = (((d * (0.5 + scale)) * 0.25) * magnitude) * sign
struct Iq2Xxs {
  static constexpr DType kDType = DType::kIQ2_XXS;
  static constexpr int kBlockLength = 256;
  static constexpr int kBlockBytes = 66;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    const float d = LoadHalf(block);
    for (int j = 0; j < 8; ++j) {
      const uint8_t* indices = block + 2 + 8 * j;
      const uint32_t a = LoadU32(indices + 4);
      scales[2 * j] = scales[2 * j + 1] = d * (0.5f + static_cast<float>(a >> 28)) * 0.25f;
      for (int i = 0; i < 32; ++i) {
        const int magnitude = kIq2XxsCodebook[8 * indices[i / 8] + i % 8];
        const bool negative = Bit(ExtendSigns(a >> 7 * (i / 8) & 127), i % 8);
        values[32 * j + i] = static_cast<int8_t>(negative ? -magnitude : magnitude);
      }
    }
  }
};

}  // namespace switchyard::kernels
