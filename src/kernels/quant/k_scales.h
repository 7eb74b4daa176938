// The packed scales that Q4_K and Q5_K share.
#pragma once

#include <cstdint>

namespace switchyard::kernels {

// Unpacks eight 6-bit scales and eight 6-bit minima from 12 bytes.
//
// Shapes: packed [12], scales and minima [8].
inline void UnpackKScales(const uint8_t* packed, uint8_t* scales, uint8_t* minima) {
  for (int j = 0; j < 4; ++j) {
    scales[j] = packed[j] & 63;
    minima[j] = packed[j + 4] & 63;
    scales[j + 4] = static_cast<uint8_t>((packed[j + 8] & 15) | packed[j] >> 6 << 4);
    minima[j + 4] = static_cast<uint8_t>(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
  }
}

}  // namespace switchyard::kernels
