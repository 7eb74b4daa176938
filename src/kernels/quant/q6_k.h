// Format Q6_K of GGUF files.
#pragma once

#include "kernels/quant/block.h"

namespace switchyard::kernels {

// 256 elements, 210 bytes: ql u8[128] @0, low nibbles; qh u8[64] @128, high two bits; sc int8[16]
// @192, scales for 16 elements each; d half @208.
// element i = (d * scale) * (q - 32)
struct Q6K {
  static constexpr DType kDType = DType::kQ6_K;
  static constexpr int kBlockLength = 256;
  static constexpr int kBlockBytes = 210;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    const float d = LoadHalf(block + 208);
    for (int h = 0; h < 16; ++h) {
      scales[h] = d * static_cast<float>(static_cast<int8_t>(block[192 + h]));
    }
    for (int i = 0; i < kBlockLength; ++i) {
      const int half = i / 128;
      const int quarter = i % 128 / 32;
      const int low = Nibble(block[64 * half + 32 * (quarter % 2) + i % 32], quarter / 2);
      const int high = block[128 + 32 * half + i % 32] >> 2 * quarter & 3;
      values[i] = static_cast<int8_t>((low | high << 4) - 32);
    }
  }
};

}  // namespace switchyard::kernels
