// In-register decoders of block formats for AVX-512 with VBMI. Private to the files of that level.
//
// Two kinds, by block length. Both yield 64 weights as one vector, in column order, as unsigned
// bytes: with 128 added, or as they are if kUnsigned.
//   256: struct with a constructor from a block; scales() and, with a minimum, minima() give one
//        float per 16 columns; Values<i>() gives columns 64i..64i+63.
//   32:  struct with a constructor from a *pair* of blocks (the second may lie past the row: its
//        results are then not used); scales() gives 8 lanes for each block, minima() the lanes
//        (m0, m0, m1, m1) four times.
// All names are in an unnamed namespace: nothing here may be merged with code of other levels.
#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "kernels/quant/codebooks.h"

namespace switchyard::kernels::cpu {
namespace {  // NOLINT(google-build-namespaces): see above

#define SWITCHYARD_INLINE [[gnu::always_inline]] inline

template <typename T>
SWITCHYARD_INLINE T LoadAs(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

SWITCHYARD_INLINE __m256i Load256(const uint8_t* bytes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}

SWITCHYARD_INLINE __m512i Load512(const void* bytes) { return _mm512_loadu_si512(bytes); }

SWITCHYARD_INLINE __m512 BroadcastHalf(const uint8_t* bytes) {
  return _mm512_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(LoadAs<uint16_t>(bytes))));
}

// 256 bits in both halves.
SWITCHYARD_INLINE __m512i Twice(__m256i x) { return _mm512_broadcast_i64x4(x); }

// `low` in the words of the lower half, `high` in those of the upper half.
SWITCHYARD_INLINE __m512i HalfWords(int16_t low, int16_t high) {
  return _mm512_inserti64x4(_mm512_set1_epi16(low), _mm256_set1_epi16(high), 1);
}

// Shifts that bring the low nibbles to the lanes 0 and 2 of 128 bits and the high ones to 1 and 3.
SWITCHYARD_INLINE __m512i NibbleShifts() {
  return _mm512_set_epi64(0x0004000400040004, 0x0004000400040004, 0, 0, 0x0004000400040004,
                          0x0004000400040004, 0, 0);
}

// A table of 16 bytes, four times: a lookup by vpermb then ignores bits 4 to 7 of the index.
SWITCHYARD_INLINE __m512i Table16(const void* table) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(table)));
}

alignas(16) constexpr uint8_t kIq4Table[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                               129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) constexpr uint8_t kQ4_0Table[16] = {120, 121, 122, 123, 124, 125, 126, 127,
                                                128, 129, 130, 131, 132, 133, 134, 135};
// Levels; index bit 3 is never set.
alignas(16) constexpr uint8_t kIq3STable[16] = {1, 3, 5, 7, 9, 11, 13, 15,
                                                1, 3, 5, 7, 9, 11, 13, 15};
alignas(16) constexpr uint8_t kIq3XxsTable[16] = {4, 12, 20, 28, 36, 44, 52, 62,
                                                  4, 12, 20, 28, 36, 44, 52, 62};

// ---- 32-element blocks ----------------------------------------------------------------------

struct Q8_0Pair {
  static constexpr int kBytes = 34;
  static constexpr bool kUnsigned = false;
  static constexpr bool kHasMinimum = false;

  SWITCHYARD_INLINE explicit Q8_0Pair(const uint8_t* blocks) : blocks(blocks) {}
  SWITCHYARD_INLINE __m512i SignedValues() const {
    const __m512i low = _mm512_castsi256_si512(Load256(blocks + 2));
    return _mm512_inserti64x4(low, Load256(blocks + kBytes + 2), 1);
  }
  SWITCHYARD_INLINE __m512i Values() const {
    return _mm512_xor_si512(SignedValues(), _mm512_set1_epi8(-128));
  }
  SWITCHYARD_INLINE __m512 scales() const {
    const __m512i words = _mm512_permutexvar_epi16(
        _mm512_inserti64x4(_mm512_setzero_si512(),
                           _mm256_set_epi16(17, 17, 17, 17, 17, 17, 17, 17, 0, 0, 0, 0, 0, 0, 0, 0),
                           0),
        Load512(blocks));
    return _mm512_cvtph_ps(_mm512_castsi512_si256(words));
  }
  const uint8_t* blocks;
};

// The formats of 16 bytes of nibbles, with or without a fifth bit and a minimum.
// kHigh: offset of the fifth bits, 0 = none. kMinimum: offset of the minimum, 0 = none.
// kTable: maps nibbles; null = none. kOffset: what is added for signed values without a table.
template <int kBlockBytes, int kData, int kHigh, int kMinimum, const uint8_t* kTable, int kOffset>
struct NibblePair {
  static constexpr int kBytes = kBlockBytes;
  static constexpr bool kUnsigned = kTable == nullptr && kOffset == 0;
  static constexpr bool kHasMinimum = kMinimum != 0;

  SWITCHYARD_INLINE explicit NibblePair(const uint8_t* blocks)
      : blocks(blocks), bytes(Load512(blocks)) {}

  SWITCHYARD_INLINE __m512i Values() const {
    const __m512i lanes = _mm512_set_epi64(
        0x0f0e0d0c0b0a0908, 0x0706050403020100, 0x0f0e0d0c0b0a0908, 0x0706050403020100,
        0x0f0e0d0c0b0a0908, 0x0706050403020100, 0x0f0e0d0c0b0a0908, 0x0706050403020100);
    const __m512i first =
        _mm512_inserti64x4(_mm512_set1_epi8(kData), _mm256_set1_epi8(kData + kBytes), 1);
    const __m512i spread = _mm512_permutexvar_epi8(_mm512_add_epi8(lanes, first), bytes);
    const __m512i shifted = _mm512_srlv_epi16(spread, NibbleShifts());
    if constexpr (kTable != nullptr) {
      return _mm512_permutexvar_epi8(shifted, Table16(kTable));
    }
    __m512i values = _mm512_and_si512(shifted, _mm512_set1_epi8(15));
    if constexpr (kHigh != 0) {
      const uint64_t high = LoadAs<uint32_t>(blocks + kHigh) |
                            static_cast<uint64_t>(LoadAs<uint32_t>(blocks + kBytes + kHigh)) << 32;
      values = _mm512_mask_add_epi8(values, high, values, _mm512_set1_epi8(16));
    }
    if constexpr (kOffset != 0) values = _mm512_add_epi8(values, _mm512_set1_epi8(kOffset));
    return values;
  }
  SWITCHYARD_INLINE __m512 scales() const {
    constexpr int16_t kSecond = kBytes / 2;
    const __m256i words = _mm256_set_epi16(kSecond, kSecond, kSecond, kSecond, kSecond, kSecond,
                                           kSecond, kSecond, 0, 0, 0, 0, 0, 0, 0, 0);
    return Halves(words);
  }
  SWITCHYARD_INLINE __m512 minima() const {
    constexpr int16_t a = kMinimum / 2;
    constexpr int16_t b = (kBytes + kMinimum) / 2;
    return Halves(_mm256_set_epi16(b, b, a, a, b, b, a, a, b, b, a, a, b, b, a, a));
  }
  SWITCHYARD_INLINE __m512 Halves(__m256i words) const {
    const __m512i halves = _mm512_permutexvar_epi16(_mm512_castsi256_si512(words), bytes);
    return _mm512_cvtph_ps(_mm512_castsi512_si256(halves));
  }
  const uint8_t* blocks;
  __m512i bytes;  // both blocks: 2 * kBytes <= 48
};

using Q4_0Pair = NibblePair<18, 2, 0, 0, kQ4_0Table, 0>;
using Q4_1Pair = NibblePair<20, 4, 0, 2, nullptr, 0>;
using Q5_0Pair = NibblePair<22, 6, 2, 0, nullptr, 112>;  // 128 - 16
using Q5_1Pair = NibblePair<24, 8, 4, 2, nullptr, 0>;
using Iq4NlPair = NibblePair<18, 2, 0, 0, kIq4Table, 0>;

// ---- 256-element blocks ---------------------------------------------------------------------

// Shifts of 16 lanes: 0, 0, step, step, 2 * step, ...
template <int kStep>
SWITCHYARD_INLINE __m512i DoubledShifts() {
  return _mm512_set_epi32(7 * kStep, 7 * kStep, 6 * kStep, 6 * kStep, 5 * kStep, 5 * kStep,
                          4 * kStep, 4 * kStep, 3 * kStep, 3 * kStep, 2 * kStep, 2 * kStep, kStep,
                          kStep, 0, 0);
}

// Eight nibbles, each in two lanes.
SWITCHYARD_INLINE __m512i DoubledNibbles(uint32_t nibbles) {
  return _mm512_and_si512(
      _mm512_srlv_epi32(_mm512_set1_epi32(static_cast<int>(nibbles)), DoubledShifts<4>()),
      _mm512_set1_epi32(15));
}

struct Iq4XsBlock {
  static constexpr int kBytes = 136;
  static constexpr bool kUnsigned = false;
  static constexpr bool kHasMinimum = false;

  SWITCHYARD_INLINE explicit Iq4XsBlock(const uint8_t* block) : block(block) {}
  SWITCHYARD_INLINE __m512 scales() const {
    const __m512i low = DoubledNibbles(LoadAs<uint32_t>(block + 4));
    const __m512i high = _mm512_and_si512(
        _mm512_srlv_epi32(_mm512_set1_epi32(LoadAs<uint16_t>(block + 2)), DoubledShifts<2>()),
        _mm512_set1_epi32(3));
    const __m512i scale =
        _mm512_sub_epi32(_mm512_or_si512(low, _mm512_slli_epi32(high, 4)), _mm512_set1_epi32(32));
    return _mm512_mul_ps(BroadcastHalf(block), _mm512_cvtepi32_ps(scale));
  }
  template <int i>
  SWITCHYARD_INLINE __m512i Values() const {
    const __m512i bytes = _mm512_castsi256_si512(Load256(block + 8 + 32 * i));
    const __m512i spread = _mm512_shuffle_i64x2(bytes, bytes, 0x50);
    return _mm512_permutexvar_epi8(_mm512_srlv_epi16(spread, NibbleShifts()), Table16(kIq4Table));
  }
  const uint8_t* block;
};

// What Q4_K and Q5_K share: eight 6-bit scales and minima.
struct KBlock {
  static constexpr bool kUnsigned = true;
  static constexpr bool kHasMinimum = true;

  SWITCHYARD_INLINE explicit KBlock(const uint8_t* block) : block(block) {
    const uint32_t a = LoadAs<uint32_t>(block + 4);
    const uint32_t b = LoadAs<uint32_t>(block + 8);
    const uint32_t c = LoadAs<uint32_t>(block + 12);
    constexpr uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTwo = 0x30303030;
    packed_scales = (a & kSix) | static_cast<uint64_t>((c & kFour) | (a >> 2 & kTwo)) << 32;
    packed_minima = (b & kSix) | static_cast<uint64_t>((c >> 4 & kFour) | (b >> 2 & kTwo)) << 32;
  }
  SWITCHYARD_INLINE static __m512 Doubled(uint64_t packed) {
    const __m128i bytes = _mm_cvtsi64_si128(static_cast<int64_t>(packed));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, bytes)));
  }
  SWITCHYARD_INLINE __m512 scales() const {
    return _mm512_mul_ps(BroadcastHalf(block), Doubled(packed_scales));
  }
  SWITCHYARD_INLINE __m512 minima() const {
    // The negated product equals the product with the negated factor.
    const __m512 dmin = _mm512_xor_ps(BroadcastHalf(block + 2), _mm512_set1_ps(-0.0f));
    return _mm512_mul_ps(dmin, Doubled(packed_minima));
  }
  // Low nibbles of 32 bytes, then their high nibbles.
  SWITCHYARD_INLINE static __m512i Nibbles(const uint8_t* bytes) {
    return _mm512_and_si512(_mm512_srlv_epi16(Twice(Load256(bytes)), HalfWords(0, 4)),
                            _mm512_set1_epi8(15));
  }
  const uint8_t* block;
  uint64_t packed_scales;
  uint64_t packed_minima;
};

struct Q4KBlock : KBlock {
  static constexpr int kBytes = 144;

  using KBlock::KBlock;
  template <int i>
  SWITCHYARD_INLINE __m512i Values() const {
    return Nibbles(block + 16 + 32 * i);
  }
};

struct Q5KBlock : KBlock {
  static constexpr int kBytes = 176;

  using KBlock::KBlock;
  template <int i>
  SWITCHYARD_INLINE __m512i Values() const {
    const __m512i bits = _mm512_inserti64x4(_mm512_set1_epi8(static_cast<char>(1 << 2 * i)),
                                            _mm256_set1_epi8(static_cast<char>(2 << 2 * i)), 1);
    const __mmask64 high = _mm512_test_epi8_mask(Twice(Load256(block + 16)), bits);
    const __m512i low = Nibbles(block + 48 + 32 * i);
    return _mm512_mask_add_epi8(low, high, low, _mm512_set1_epi8(16));
  }
};

struct Q6KBlock {
  static constexpr int kBytes = 210;
  static constexpr bool kUnsigned = false;
  static constexpr bool kHasMinimum = false;

  SWITCHYARD_INLINE explicit Q6KBlock(const uint8_t* block) : block(block) {}
  SWITCHYARD_INLINE __m512 scales() const {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 192));
    return _mm512_mul_ps(BroadcastHalf(block + 208),
                         _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
  }
  template <int i>
  SWITCHYARD_INLINE __m512i Values() const {
    constexpr int kHalf = i / 2;
    constexpr int kPart = i % 2;  // the low or the high nibbles of the same bytes
    __m512i low = Load512(block + 64 * kHalf);
    if constexpr (kPart == 1) low = _mm512_srli_epi16(low, 4);
    low = _mm512_and_si512(low, _mm512_set1_epi8(15));
    const __m512i high = _mm512_srlv_epi16(Twice(Load256(block + 128 + 32 * kHalf)),
                                           HalfWords(4 * kPart, 4 * kPart + 2));
    const __m512i high_bits = _mm512_slli_epi16(_mm512_and_si512(high, _mm512_set1_epi8(3)), 4);
    return _mm512_add_epi8(_mm512_or_si512(low, high_bits), _mm512_set1_epi8(96));  // 128 - 32
  }
  const uint8_t* block;
};

// Magnitudes of 16 codebook entries from the level pairs of 64; `table` maps levels.
template <int i>
SWITCHYARD_INLINE __m512i EntryBytes(__m512i pairs01, __m512i pairs23, __m512i table) {
  // Bytes 4n..4n+3 of entry n: twice its first pair of nibbles, twice its second.
  const __m512i entry =
      _mm512_cvtepu8_epi32(_mm_set_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  const __m512i select = _mm512_add_epi32(_mm512_mullo_epi32(entry, _mm512_set1_epi32(0x01010101)),
                                          _mm512_set1_epi32(0x40400000 + 0x01010101 * 16 * i));
  const __m512i bytes = _mm512_permutex2var_epi8(pairs01, select, pairs23);
  // Odd bytes take their high nibble.
  const __m512i shifts = _mm512_set1_epi64(0x3c302c201c100c00);
  return _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shifts, bytes), table);
}

// 64 lookups in a table of 256 bytes.
SWITCHYARD_INLINE __m512i Lookup256(const uint8_t* table, __m512i index, __mmask64 bit7) {
  const __m512i low = _mm512_permutex2var_epi8(Load512(table), index, Load512(table + 64));
  const __m512i high = _mm512_permutex2var_epi8(Load512(table + 128), index, Load512(table + 192));
  return _mm512_mask_mov_epi8(low, bit7, high);
}

struct Iq3SBlock {
  static constexpr int kBytes = 110;
  static constexpr bool kUnsigned = false;
  static constexpr bool kHasMinimum = false;

  SWITCHYARD_INLINE explicit Iq3SBlock(const uint8_t* block) : block(block) {
    // The high index bits lie as the lookups want them: bit n belongs to index n of 64.
    const __m512i index = Load512(block + 2);
    const __mmask64 bit7 = _mm512_movepi8_mask(index);
    const __mmask64 bit8 = LoadAs<uint64_t>(block + 66);
    const uint8_t* table01 = kIq3SLevelPairs[0].data();
    const uint8_t* table23 = kIq3SLevelPairs[1].data();
    pairs01 = _mm512_mask_mov_epi8(Lookup256(table01, index, bit7), bit8,
                                   Lookup256(table01 + 256, index, bit7));
    pairs23 = _mm512_mask_mov_epi8(Lookup256(table23, index, bit7), bit8,
                                   Lookup256(table23 + 256, index, bit7));
  }
  SWITCHYARD_INLINE __m512 scales() const {
    const __m512i nibbles = DoubledNibbles(LoadAs<uint32_t>(block + 106));
    const __m512i scale =
        _mm512_add_epi32(_mm512_add_epi32(nibbles, nibbles), _mm512_set1_epi32(1));
    return _mm512_mul_ps(BroadcastHalf(block), _mm512_cvtepi32_ps(scale));
  }
  // Bit n of the result is set if weight 64i + n is negative.
  template <int i>
  SWITCHYARD_INLINE __mmask64 Negative() const {
    return LoadAs<uint64_t>(block + 74 + 8 * i);
  }
  template <int i>
  SWITCHYARD_INLINE __m512i Magnitudes() const {
    return EntryBytes<i>(pairs01, pairs23, Table16(kIq3STable));
  }
  template <int i>
  SWITCHYARD_INLINE __m512i Values() const {
    const __m512i middle = _mm512_set1_epi8(-128);
    const __m512i magnitudes = Magnitudes<i>();
    return _mm512_mask_sub_epi8(_mm512_add_epi8(middle, magnitudes), Negative<i>(), middle,
                                magnitudes);
  }
  const uint8_t* block;
  __m512i pairs01;
  __m512i pairs23;
};

struct Iq3XxsBlock {
  static constexpr int kBytes = 98;
  static constexpr bool kUnsigned = false;
  static constexpr bool kHasMinimum = false;

  SWITCHYARD_INLINE explicit Iq3XxsBlock(const uint8_t* block) : block(block) {
    const __m512i index = Load512(block + 2);
    const __mmask64 bit7 = _mm512_movepi8_mask(index);
    pairs01 = Lookup256(kIq3XxsLevelPairs[0].data(), index, bit7);
    pairs23 = Lookup256(kIq3XxsLevelPairs[1].data(), index, bit7);
  }
  SWITCHYARD_INLINE __m512 scales() const {
    const __m512i fields =
        _mm512_permutexvar_epi32(_mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0),
                                 _mm512_castsi256_si512(Load256(block + 66)));
    const __m512 scale =
        _mm512_add_ps(_mm512_set1_ps(0.5f), _mm512_cvtepi32_ps(_mm512_srli_epi32(fields, 28)));
    return _mm512_mul_ps(_mm512_mul_ps(BroadcastHalf(block), scale), _mm512_set1_ps(0.5f));
  }
  // Bit n of the result is set if weight 64i + n is negative.
  template <int i>
  SWITCHYARD_INLINE __mmask64 Negative() const {
    return Signs(LoadAs<uint64_t>(block + 66 + 8 * i));
  }
  template <int i>
  SWITCHYARD_INLINE __m512i Magnitudes() const {
    return EntryBytes<i>(pairs01, pairs23, Table16(kIq3XxsTable));
  }
  template <int i>
  SWITCHYARD_INLINE __m512i Values() const {
    const __m512i middle = _mm512_set1_epi8(-128);
    const __m512i magnitudes = Magnitudes<i>();
    return _mm512_mask_sub_epi8(_mm512_add_epi8(middle, magnitudes), Negative<i>(), middle,
                                magnitudes);
  }
  // Four 7-bit fields of each u32, each extended to a byte of even parity.
  SWITCHYARD_INLINE static uint64_t Signs(uint64_t fields) {
    constexpr uint64_t kSeven = 0x7f7f7f7f7f7f7f7f, kLowest = 0x0101010101010101;
    const uint64_t low = fields & 0x0fffffff;
    const uint64_t high = fields >> 32 & 0x0fffffff;
    const uint64_t bytes = Spread(low) | Spread(high) << 32;
    uint64_t parity = bytes ^ (bytes >> 4);
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return (bytes & kSeven) | (parity & kLowest) << 7;
  }
  // 7-bit fields to bytes.
  SWITCHYARD_INLINE static uint64_t Spread(uint64_t x) {
    x = (x & 0x3fff) | (x & 0x0fffc000) << 2;
    return (x & 0x007f007f) | (x & 0x3f803f80) << 1;
  }
  const uint8_t* block;
  __m512i pairs01;
  __m512i pairs23;
};

}  // namespace
}  // namespace switchyard::kernels::cpu
