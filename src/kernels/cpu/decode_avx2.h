// In-register decoders of block formats for AVX2. Private to the files of that level.
//
// A decoder is constructed from a block. Values<g>() gives the integers of group g (32 columns, in
// order), as signed bytes or, if kUnsigned, unsigned ones. Formats of 32 elements have one group
// and scale(), minimum(); those of 256 have Scales(float[16]) and Minima(float[16]), one factor per
// 16 columns.
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

SWITCHYARD_INLINE __m256i Load256(const void* bytes) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(bytes));
}

SWITCHYARD_INLINE __m128i Load128(const void* bytes) {
  return _mm_loadu_si128(static_cast<const __m128i*>(bytes));
}

SWITCHYARD_INLINE float HalfAt(const uint8_t* bytes) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(LoadAs<uint16_t>(bytes))));
}

// 16 bytes of nibbles: the low ones, then the high ones.
SWITCHYARD_INLINE __m256i SplitNibbles(const uint8_t* bytes) {
  const __m128i x = Load128(bytes);
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(x), _mm_srli_epi16(x, 4), 1);
  return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

SWITCHYARD_INLINE __m256i Lookup16(const int8_t* table, __m256i nibbles) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(Load128(table)), nibbles);
}

// Bytes: `value` where bit i of `bits` is set, else 0.
SWITCHYARD_INLINE __m256i SpreadBits(uint32_t bits, int8_t value) {
  const __m256i bytes = _mm256_shuffle_epi8(
      _mm256_set1_epi32(static_cast<int>(bits)),
      _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0));
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  return _mm256_and_si256(set, _mm256_set1_epi8(value));
}

// Stores eight factors, each twice.
SWITCHYARD_INLINE void StoreTwice(__m256 factors, float* out) {
  const __m256 low = _mm256_unpacklo_ps(factors, factors);   // 0 0 1 1 | 4 4 5 5
  const __m256 high = _mm256_unpackhi_ps(factors, factors);  // 2 2 3 3 | 6 6 7 7
  _mm256_storeu_ps(out, _mm256_permute2f128_ps(low, high, 0x20));
  _mm256_storeu_ps(out + 8, _mm256_permute2f128_ps(low, high, 0x31));
}

// ---- 32-element blocks ----------------------------------------------------------------------

struct Q8_0Block {
  static constexpr int kBytes = 34;
  static constexpr int kLength = 32;
  static constexpr bool kUnsigned = false;
  static constexpr bool kHasMinimum = false;

  SWITCHYARD_INLINE explicit Q8_0Block(const uint8_t* block) : block(block) {}
  template <int>
  SWITCHYARD_INLINE __m256i Values() const {
    return Load256(block + 2);
  }
  SWITCHYARD_INLINE float scale() const { return HalfAt(block); }
  const uint8_t* block;
};

// The formats of 16 bytes of nibbles. kHigh: offset of the fifth bits, 0 = none. kMinimum: offset
// of the minimum, 0 = none. kOffset is subtracted.
template <int kBlockBytes, int kData, int kHigh, int kMinimum, int kOffset>
struct NibbleBlock {
  static constexpr int kBytes = kBlockBytes;
  static constexpr int kLength = 32;
  static constexpr bool kUnsigned = kOffset == 0;
  static constexpr bool kHasMinimum = kMinimum != 0;

  SWITCHYARD_INLINE explicit NibbleBlock(const uint8_t* block) : block(block) {}
  template <int>
  SWITCHYARD_INLINE __m256i Values() const {
    __m256i values = SplitNibbles(block + kData);
    if constexpr (kHigh != 0) {
      values = _mm256_or_si256(values, SpreadBits(LoadAs<uint32_t>(block + kHigh), 16));
    }
    if constexpr (kOffset != 0) values = _mm256_sub_epi8(values, _mm256_set1_epi8(kOffset));
    return values;
  }
  SWITCHYARD_INLINE float scale() const { return HalfAt(block); }
  SWITCHYARD_INLINE float minimum() const { return HalfAt(block + kMinimum); }
  const uint8_t* block;
};

using Q4_0Block = NibbleBlock<18, 2, 0, 0, 8>;
using Q4_1Block = NibbleBlock<20, 4, 0, 2, 0>;
using Q5_0Block = NibbleBlock<22, 6, 2, 0, 16>;
using Q5_1Block = NibbleBlock<24, 8, 4, 2, 0>;

struct Iq4NlBlock {
  static constexpr int kBytes = 18;
  static constexpr int kLength = 32;
  static constexpr bool kUnsigned = false;
  static constexpr bool kHasMinimum = false;

  SWITCHYARD_INLINE explicit Iq4NlBlock(const uint8_t* block) : block(block) {}
  template <int>
  SWITCHYARD_INLINE __m256i Values() const {
    return Lookup16(kIq4Values.data(), SplitNibbles(block + 2));
  }
  SWITCHYARD_INLINE float scale() const { return HalfAt(block); }
  const uint8_t* block;
};

// ---- 256-element blocks ---------------------------------------------------------------------

// Eight nibbles, one in each lane.
SWITCHYARD_INLINE __m256i EightNibbles(uint32_t nibbles) {
  const __m256i shifts = _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0);
  return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(nibbles)), shifts),
                          _mm256_set1_epi32(15));
}

struct Iq4XsBlock {
  static constexpr int kBytes = 136;
  static constexpr int kLength = 256;
  static constexpr bool kUnsigned = false;
  static constexpr bool kHasMinimum = false;

  SWITCHYARD_INLINE explicit Iq4XsBlock(const uint8_t* block) : block(block) {}
  SWITCHYARD_INLINE void Scales(float* out) const {
    const __m256i shifts = _mm256_set_epi32(14, 12, 10, 8, 6, 4, 2, 0);
    const __m256i high =
        _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(LoadAs<uint16_t>(block + 2)), shifts),
                         _mm256_set1_epi32(3));
    const __m256i scale = _mm256_sub_epi32(
        _mm256_or_si256(EightNibbles(LoadAs<uint32_t>(block + 4)), _mm256_slli_epi32(high, 4)),
        _mm256_set1_epi32(32));
    StoreTwice(_mm256_mul_ps(_mm256_set1_ps(HalfAt(block)), _mm256_cvtepi32_ps(scale)), out);
  }
  template <int g>
  SWITCHYARD_INLINE __m256i Values() const {
    return Lookup16(kIq4Values.data(), SplitNibbles(block + 8 + 16 * g));
  }
  const uint8_t* block;
};

// What Q4_K and Q5_K share: eight 6-bit scales and minima.
struct KBlock {
  static constexpr int kLength = 256;
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
  SWITCHYARD_INLINE static __m256 Floats(uint64_t packed) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(packed))));
  }
  SWITCHYARD_INLINE void Scales(float* out) const {
    StoreTwice(_mm256_mul_ps(_mm256_set1_ps(HalfAt(block)), Floats(packed_scales)), out);
  }
  SWITCHYARD_INLINE void Minima(float* out) const {
    // The negated product equals the product with the negated factor.
    StoreTwice(_mm256_mul_ps(_mm256_set1_ps(-HalfAt(block + 2)), Floats(packed_minima)), out);
  }
  // Low nibbles of 32 bytes for even, high nibbles for odd groups.
  template <int g>
  SWITCHYARD_INLINE static __m256i Nibbles(const uint8_t* bytes) {
    __m256i x = Load256(bytes + g / 2 * 32);
    if constexpr (g % 2 == 1) x = _mm256_srli_epi16(x, 4);
    return _mm256_and_si256(x, _mm256_set1_epi8(15));
  }
  const uint8_t* block;
  uint64_t packed_scales;
  uint64_t packed_minima;
};

struct Q4KBlock : KBlock {
  static constexpr int kBytes = 144;

  using KBlock::KBlock;
  template <int g>
  SWITCHYARD_INLINE __m256i Values() const {
    return Nibbles<g>(block + 16);
  }
};

struct Q5KBlock : KBlock {
  static constexpr int kBytes = 176;

  using KBlock::KBlock;
  template <int g>
  SWITCHYARD_INLINE __m256i Values() const {
    __m256i high = Load256(block + 16);
    if constexpr (g < 4) high = _mm256_slli_epi16(high, 4 - g);
    if constexpr (g > 4) high = _mm256_srli_epi16(high, g - 4);
    return _mm256_or_si256(Nibbles<g>(block + 48), _mm256_and_si256(high, _mm256_set1_epi8(16)));
  }
};

struct Q6KBlock {
  static constexpr int kBytes = 210;
  static constexpr int kLength = 256;
  static constexpr bool kUnsigned = false;
  static constexpr bool kHasMinimum = false;

  SWITCHYARD_INLINE explicit Q6KBlock(const uint8_t* block) : block(block) {}
  SWITCHYARD_INLINE void Scales(float* out) const {
    const __m128i bytes = Load128(block + 192);
    const __m256 d = _mm256_set1_ps(HalfAt(block + 208));
    _mm256_storeu_ps(out, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))));
    _mm256_storeu_ps(
        out + 8,
        _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))));
  }
  template <int g>
  SWITCHYARD_INLINE __m256i Values() const {
    constexpr int kHalf = g / 4;
    constexpr int kQuarter = g % 4;
    __m256i low = Load256(block + 64 * kHalf + 32 * (kQuarter % 2));
    if constexpr (kQuarter >= 2) low = _mm256_srli_epi16(low, 4);
    low = _mm256_and_si256(low, _mm256_set1_epi8(15));
    __m256i high = Load256(block + 128 + 32 * kHalf);
    if constexpr (kQuarter < 2) high = _mm256_slli_epi16(high, 4 - 2 * kQuarter);
    if constexpr (kQuarter == 3) high = _mm256_srli_epi16(high, 2);
    high = _mm256_and_si256(high, _mm256_set1_epi8(0x30));
    return _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(32));
  }
  const uint8_t* block;
};

// Eight entries of four bytes from a codebook.
SWITCHYARD_INLINE __m256i GatherEntries(const uint8_t* codebook, __m256i index) {
  return _mm256_i32gather_epi32(reinterpret_cast<const int*>(codebook), index, 4);
}

// Negates the bytes whose bit of `signs` is set.
SWITCHYARD_INLINE __m256i WithSigns(__m256i magnitudes, uint32_t signs) {
  const __m256i negative = SpreadBits(signs, -1);
  return _mm256_sub_epi8(_mm256_xor_si256(magnitudes, negative), negative);
}

struct Iq3SBlock {
  static constexpr int kBytes = 110;
  static constexpr int kLength = 256;
  static constexpr bool kUnsigned = false;
  static constexpr bool kHasMinimum = false;

  SWITCHYARD_INLINE explicit Iq3SBlock(const uint8_t* block) : block(block) {}
  SWITCHYARD_INLINE void Scales(float* out) const {
    const __m256i nibbles = EightNibbles(LoadAs<uint32_t>(block + 106));
    const __m256i scale =
        _mm256_add_epi32(_mm256_add_epi32(nibbles, nibbles), _mm256_set1_epi32(1));
    StoreTwice(_mm256_mul_ps(_mm256_set1_ps(HalfAt(block)), _mm256_cvtepi32_ps(scale)), out);
  }
  template <int g>
  SWITCHYARD_INLINE __m256i Values() const {
    const __m256i low = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(LoadAs<int64_t>(block + 2 + 8 * g)));
    const __m256i high = _mm256_sllv_epi32(_mm256_set1_epi32(block[66 + g]),
                                           _mm256_set_epi32(1, 2, 3, 4, 5, 6, 7, 8));
    const __m256i index = _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi32(256)));
    return WithSigns(GatherEntries(kIq3SCodebook.data(), index),
                     LoadAs<uint32_t>(block + 74 + 4 * g));
  }
  const uint8_t* block;
};

struct Iq3XxsBlock {
  static constexpr int kBytes = 98;
  static constexpr int kLength = 256;
  static constexpr bool kUnsigned = false;
  static constexpr bool kHasMinimum = false;

  SWITCHYARD_INLINE explicit Iq3XxsBlock(const uint8_t* block) : block(block) {}
  SWITCHYARD_INLINE void Scales(float* out) const {
    const __m256 scale = _mm256_add_ps(
        _mm256_set1_ps(0.5f), _mm256_cvtepi32_ps(_mm256_srli_epi32(Load256(block + 66), 28)));
    StoreTwice(
        _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(HalfAt(block)), scale), _mm256_set1_ps(0.5f)),
        out);
  }
  template <int g>
  SWITCHYARD_INLINE __m256i Values() const {
    const __m256i index =
        _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(LoadAs<int64_t>(block + 2 + 8 * g)));
    // Four 7-bit fields to bytes, then bit 7 of each makes the parity even.
    const auto fields = LoadAs<uint32_t>(block + 66 + 4 * g);
    uint32_t signs = (fields & 0x3fff) | (fields & 0x0fffc000) << 2;
    signs = (signs & 0x007f007f) | (signs & 0x3f803f80) << 1;
    uint32_t parity = signs ^ signs >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return WithSigns(GatherEntries(kIq3XxsCodebook.data(), index), signs | (parity & 0x01010101)
                                                                               << 7);
  }
  const uint8_t* block;
};

}  // namespace
}  // namespace switchyard::kernels::cpu
