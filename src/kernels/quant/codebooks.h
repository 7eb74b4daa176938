// Codebooks of the IQ formats: tables found by a clustering search, not by a formula.
#pragma once

#include <array>
#include <cstdint>

namespace switchyard::kernels {

// Magnitudes (IQ2, IQ3) or values (IQ1) of each entry, entry after entry. Entries of IQ3 hold 4
// elements, those of IQ1 and IQ2 hold 8.
//
// Source: ggml (MIT licence, notice in codebooks.cc), ggml/src/ggml-common.h.
extern const std::array<uint8_t, 512 * 4> kIq3SCodebook;
extern const std::array<uint8_t, 256 * 4> kIq3XxsCodebook;
extern const std::array<uint8_t, 256 * 8> kIq2XxsCodebook;
extern const std::array<uint8_t, 512 * 8> kIq2XsCodebook;
extern const std::array<uint8_t, 1024 * 8> kIq2SCodebook;
extern const std::array<int8_t, 2048 * 8> kIq1Codebook;

// The IQ3 codebooks as 3-bit level indices, two to a byte: row 0 holds elements 0 (low nibble) and
// 1 (high nibble) of each entry, row 1 elements 2 and 3. Vector code looks these up with byte
// shuffles. Levels: 2 * index + 1 for IQ3_S, kIq3XxsLevels for IQ3_XXS.
extern const std::array<std::array<uint8_t, 512>, 2> kIq3SLevelPairs;
extern const std::array<std::array<uint8_t, 256>, 2> kIq3XxsLevelPairs;
inline constexpr std::array<uint8_t, 8> kIq3XxsLevels = {4, 12, 20, 28, 36, 44, 52, 62};

// Values of the 16 nibbles of IQ4_NL and IQ4_XS.
inline constexpr std::array<int8_t, 16> kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                      1,    13,   25,  38,  53,  69,  89,  113};

// Extends a seven-bit sign field to eight bits of even parity.
inline unsigned ExtendSigns(unsigned seven_bits) {
  unsigned parity = seven_bits ^ seven_bits >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return seven_bits | (parity & 1) << 7;
}

}  // namespace switchyard::kernels
