// Format IQ4_NL of GGUF files.
#pragma once

#include "kernels/quant/block.h"
#include "kernels/quant/codebooks.h"

namespace switchyard::kernels {

// 32 elements, 18 bytes: d half @0; qs u8[16] @2, low nibbles first.
// element i = d * kIq4Values[nibble]
struct Iq4Nl {
  static constexpr DType kDType = DType::kIQ4_NL;
  static constexpr int kBlockLength = 32;
  static constexpr int kBlockBytes = 18;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    scales[0] = scales[1] = LoadHalf(block);
    for (int i = 0; i < kBlockLength; ++i) {
      values[i] = kIq4Values[Nibble(block[2 + i % 16], i / 16)];
    }
  }
};

}  // namespace switchyard::kernels
