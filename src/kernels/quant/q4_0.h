// Format Q4_0 of GGUF files.
#pragma once

#include "kernels/quant/block.h"

namespace switchyard::kernels {

// 32 elements, 18 bytes: d half @0; qs u8[16] @2, low nibbles first.
// element i = d * (nibble - 8)
struct Q4_0 {
  static constexpr DType kDType = DType::kQ4_0;
  static constexpr int kBlockLength = 32;
  static constexpr int kBlockBytes = 18;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    scales[0] = scales[1] = LoadHalf(block);
    for (int i = 0; i < kBlockLength; ++i) {
      values[i] = static_cast<int8_t>(Nibble(block[2 + i % 16], i / 16) - 8);
    }
  }
};

}  // namespace switchyard::kernels
