// What the headers of the block formats share.
//
// Each format is a struct without members:
//   kDType, kBlockLength, kBlockBytes   as in base/dtype.h
//   kHasMinimum                         whether `minima` is written and added
//   Expand(block, values, scales, minima)
// Expand() splits one block into integers and factors. With h = i / 16,
//   element i = scales[h] * values[i]               without a minimum, or
//   element i = scales[h] * values[i] + minima[h]   with one,
// each operation rounded to binary32 by itself: that is bit for bit the formula of the format. The
// integers, not the product, are what the matrix kernels need.
//
// Shapes: values [kBlockLength], scales and minima [kBlockLength / 16].
// Source: ggml (MIT licence), ggml/src/ggml-common.h and ggml-quants.c.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "kernels/quant/half.h"

namespace switchyard::kernels {

// Little-endian loads from unaligned bytes.
inline uint16_t LoadU16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}
inline uint32_t LoadU32(const uint8_t* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}
inline float LoadHalf(const uint8_t* bytes) { return HalfToFloat(LoadU16(bytes)); }

// The low (which = 0) or high (which = 1) four bits of a byte.
inline int Nibble(uint8_t byte, int which) { return byte >> (4 * which) & 15; }

inline int Bit(uint32_t bits, int index) { return static_cast<int>(bits >> index & 1); }

}  // namespace switchyard::kernels
