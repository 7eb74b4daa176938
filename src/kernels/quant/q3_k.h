// Format Q3_K of GGUF files.
#pragma once

#include "kernels/quant/block.h"

namespace switchyard::kernels {

// 256 elements, 110 bytes: hmask u8[32] @0; qs u8[64] @32, two bits each; sc u8[12] @96, sixteen
// 6-bit scales for 16 elements each; d half @108. A clear mask bit subtracts 4.
// element i = (d * (scale - 32)) * q
struct Q3K {
  static constexpr DType kDType = DType::kQ3_K;
  static constexpr int kBlockLength = 256;
  static constexpr int kBlockBytes = 110;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    const float d = LoadHalf(block + 108);
    const uint8_t* packed = block + 96;
    for (int h = 0; h < 16; ++h) {
      const int low = h < 8 ? packed[h] & 15 : packed[h - 8] >> 4;
      const int high = packed[8 + h % 4] >> 2 * (h / 4) & 3;
      scales[h] = d * static_cast<float>((low | high << 4) - 32);
    }
    for (int i = 0; i < kBlockLength; ++i) {
      const int half = i / 128;
      const int quarter = i % 128 / 32;
      const int low = block[32 + 32 * half + i % 32] >> 2 * quarter & 3;
      values[i] = static_cast<int8_t>(low - (Bit(block[i % 32], 4 * half + quarter) ? 0 : 4));
    }
  }
};

}  // namespace switchyard::kernels
