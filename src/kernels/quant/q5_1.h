// Format Q5_1 of GGUF files.
#pragma once

#include "kernels/quant/block.h"

namespace switchyard::kernels {

// 32 elements, 24 bytes: d half @0; m half @2; qh u32 @4, the fifth bits; qs u8[16] @8, low
// nibbles first.
// element i = d * (nibble + 16 * bit(qh, i)) + m
struct Q5_1 {
  static constexpr DType kDType = DType::kQ5_1;
  static constexpr int kBlockLength = 32;
  static constexpr int kBlockBytes = 24;
  static constexpr bool kHasMinimum = true;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* minima) {
    scales[0] = scales[1] = LoadHalf(block);
    minima[0] = minima[1] = LoadHalf(block + 2);
    const uint32_t high = LoadU32(block + 4);
    for (int i = 0; i < kBlockLength; ++i) {
      values[i] = static_cast<int8_t>(Nibble(block[8 + i % 16], i / 16) + 16 * Bit(high, i));
    }
  }
};

}  // namespace switchyard::kernels
