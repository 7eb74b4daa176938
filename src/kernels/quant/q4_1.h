// Format Q4_1 of GGUF files.
#pragma once

#include "kernels/quant/block.h"

namespace switchyard::kernels {

// 32 elements, 20 bytes: d half @0; m half @2; qs u8[16] @4, low nibbles first.
// element i = d * nibble + m
struct Q4_1 {
  static constexpr DType kDType = DType::kQ4_1;
  static constexpr int kBlockLength = 32;
  static constexpr int kBlockBytes = 20;
  static constexpr bool kHasMinimum = true;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* minima) {
    scales[0] = scales[1] = LoadHalf(block);
    minima[0] = minima[1] = LoadHalf(block + 2);
    for (int i = 0; i < kBlockLength; ++i) {
      values[i] = static_cast<int8_t>(Nibble(block[4 + i % 16], i / 16));
    }
  }
};

}  // namespace switchyard::kernels
