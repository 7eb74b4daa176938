// Format Q8_0 of GGUF files.
#pragma once

#include "kernels/quant/block.h"

namespace switchyard::kernels {

// 32 elements, 34 bytes: d half @0; q int8[32] @2.
// element i = d * q[i]
struct Q8_0 {
  static constexpr DType kDType = DType::kQ8_0;
  static constexpr int kBlockLength = 32;
  static constexpr int kBlockBytes = 34;
  static constexpr bool kHasMinimum = false;

  static void Expand(const uint8_t* block, int8_t* values, float* scales, float* /*minima*/) {
    scales[0] = scales[1] = LoadHalf(block);
    std::memcpy(values, block + 2, kBlockLength);
  }
};

}  // namespace switchyard::kernels
