// Format Q5_0 of GGUF files.
#pragma once

#include "kernels/quant/block.h"

namespace switchyard::kernels {

// 32 elements, 22 bytes: d half @0; qh u32 @2, the fifth bits; qs u8[16] @6, low nibbles first.
// element i = d * ((nibble + 16 * bit(qh, i)) - 16)
struct Q5_0 {
  static constexpr DType kDType = DType::kQ5_0;
  static constexpr int kBlockLength = 32;
  static constexpr int kBlockBytes = 22;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    scales[0] = scales[1] = LoadHalf(block);
    const uint32_t high = LoadU32(block + 2);
    for (int i = 0; i < kBlockLength; ++i) {
      values[i] = static_cast<int8_t>(Nibble(block[6 + i % 16], i / 16) + 16 * Bit(high, i) - 16);
    }
  }
};

}  // namespace switchyard::kernels
