// The AVX2 level: block formats. The 16 lanes of row_dot.h are two vectors, for even and odd
// groups.
#include "kernels/cpu/row_dot_avx2.h"

#include <array>
#include <cmath>
#include <immintrin.h>
#include <utility>

#include "kernels/cpu/decode_avx2.h"
#include "kernels/cpu/row_dot.h"

namespace switchyard::kernels::cpu {
namespace {

// 16 lanes of row_dot.h.
struct Lanes {
  __m256 even = _mm256_setzero_ps();
  __m256 odd = _mm256_setzero_ps();

  SWITCHYARD_INLINE __m256 Folded() const { return _mm256_add_ps(even, odd); }
};

// Final sum of row_dot.h, from s[0..7].
SWITCHYARD_INLINE float SumOf8(__m256 s) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

template <bool kHasMinimum>
SWITCHYARD_INLINE float FinalSum(const Lanes& acc, const Lanes& low) {
  __m256 s = acc.Folded();
  if constexpr (kHasMinimum) s = _mm256_add_ps(s, low.Folded());
  return SumOf8(s);
}

// Sums of four products, as floats. |w| <= 128 and |q| <= 127 keep the 16-bit pair sums exact: at
// most 2 * 128 * 127 = 32512.
template <bool kUnsigned>
SWITCHYARD_INLINE __m256 IntegerDot(__m256i w, __m256i quants) {
  const __m256i pairs = kUnsigned
                            ? _mm256_maddubs_epi16(w, quants)
                            : _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(quants, w));
  return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// Factors of the two halves of a group -> lanes 0-3 and 4-7.
SWITCHYARD_INLINE __m256 HalfLanes(const float* halves) {
  const __m256i select = _mm256_set_epi32(1, 1, 1, 1, 0, 0, 0, 0);
  const __m128i both = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(halves));
  return _mm256_permutevar_ps(_mm256_castsi256_ps(_mm256_broadcastq_epi64(both)), select);
}

// Pointers into one quantised activation row, from a column on.
struct RowPointers {
  const int8_t* quants;
  const float* scales;
  const float* half_sums;

  SWITCHYARD_INLINE RowPointers(const QuantizedRows& x, int64_t row, int64_t column)
      : quants(x.quants + row * x.padded_cols + column),
        scales(x.scales + (row * x.padded_cols + column) / 32),
        half_sums(x.half_sums + (row * x.padded_cols + column) / 16) {}
};

// Sum of minimum * half_sum over the halves of a segment, in the 16 lanes of row_dot.h.
SWITCHYARD_INLINE void AddMinima(const float* minima, const float* half_sums, int64_t num_halves,
                                 Lanes* low) {
  int64_t h = 0;
  for (; h + 16 <= num_halves; h += 16) {
    low->even =
        _mm256_fmadd_ps(_mm256_loadu_ps(minima + h), _mm256_loadu_ps(half_sums + h), low->even);
    low->odd = _mm256_fmadd_ps(_mm256_loadu_ps(minima + h + 8), _mm256_loadu_ps(half_sums + h + 8),
                               low->odd);
  }
  if (h == num_halves) return;
  alignas(32) float lanes[16];
  _mm256_store_ps(lanes, low->even);
  _mm256_store_ps(lanes + 8, low->odd);
  for (; h < num_halves; ++h) {
    lanes[h % 16] = _mm_cvtss_f32(
        _mm_fmadd_ss(_mm_set_ss(minima[h]), _mm_set_ss(half_sums[h]), _mm_set_ss(lanes[h % 16])));
  }
  low->even = _mm256_load_ps(lanes);
  low->odd = _mm256_load_ps(lanes + 8);
}

// ---- one activation row, stored weights -----------------------------------------------------

// Rows are taken one by one, so that the weights are a single stream through memory: several rows
// side by side are faster in the cache and half as fast from memory. The distance helps the
// hardware prefetcher over the borders of pages.
constexpr int64_t kPrefetchBytes = 1536;

template <int kBytes>
SWITCHYARD_INLINE void Prefetch(const uint8_t* w) {
  for (int i = 0; i < kBytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(w + kPrefetchBytes + i), _MM_HINT_T0);
  }
}

template <typename Block, int g>
SWITCHYARD_INLINE void GroupStep(const Block& block, const float* scales, const int8_t* quants,
                                 Lanes* acc) {
  const __m256 sum = IntegerDot<Block::kUnsigned>(block.template Values<g>(), Load256(quants));
  __m256& lanes = g % 2 == 0 ? acc->even : acc->odd;
  lanes = _mm256_fmadd_ps(sum, HalfLanes(scales + 2 * g), lanes);
}

// One row of a format with 256-element blocks.
template <typename Block>
SWITCHYARD_INLINE float DotBlocks(const uint8_t* w, const RowPointers& x, int64_t num_cols) {
  Lanes acc, low;
  for (int64_t k = 0; k < num_cols; k += 256, w += Block::kBytes) {
    Prefetch<Block::kBytes>(w);
    const Block block(w);
    alignas(32) float x_scales[16];
    alignas(32) float scales[16];
    StoreTwice(_mm256_loadu_ps(x.scales + k / 32), x_scales);
    block.Scales(scales);
    for (int h = 0; h < 16; h += 8) {
      _mm256_store_ps(scales + h,
                      _mm256_mul_ps(_mm256_load_ps(scales + h), _mm256_load_ps(x_scales + h)));
    }
    if constexpr (Block::kHasMinimum) {
      alignas(32) float minima[16];
      block.Minima(minima);
      AddMinima(minima, x.half_sums + k / 16, 16, &low);
    }
    [&]<int... g>(std::integer_sequence<int, g...>) {
      (GroupStep<Block, g>(block, scales, x.quants + k + 32 * g, &acc), ...);
    }
    (std::make_integer_sequence<int, 8>());
  }
  return FinalSum<Block::kHasMinimum>(acc, low);
}

template <typename Block>
SWITCHYARD_INLINE __m256 SmallGroupStep(const uint8_t* w, const RowPointers& x, int64_t g,
                                        __m256 lanes) {
  const Block block(w + g * Block::kBytes);
  const __m256 scale = _mm256_set1_ps(block.scale() * x.scales[g]);
  const __m256 sum =
      IntegerDot<Block::kUnsigned>(block.template Values<0>(), Load256(x.quants + 32 * g));
  return _mm256_fmadd_ps(sum, scale, lanes);
}

template <typename Block>
SWITCHYARD_INLINE void AddSmallMinima(const uint8_t* w, const RowPointers& x, int64_t num_groups,
                                      Lanes* low) {
  alignas(32) float minima[16];
  for (int64_t first = 0; first < num_groups; first += 8) {
    const int64_t count = num_groups - first < 8 ? num_groups - first : 8;
    for (int64_t g = 0; g < count; ++g) {
      minima[2 * g] = minima[2 * g + 1] = Block(w + (first + g) * Block::kBytes).minimum();
    }
    AddMinima(minima, x.half_sums + 2 * first, 2 * count, low);
  }
}

// One row of a format with 32-element blocks.
template <typename Block>
SWITCHYARD_INLINE float DotSmallBlocks(const uint8_t* w, const RowPointers& x, int64_t num_cols) {
  Lanes acc, low;
  const int64_t num_groups = num_cols / 32;
  int64_t g = 0;
  for (; g + 2 <= num_groups; g += 2) {
    Prefetch<2 * Block::kBytes>(w + g * Block::kBytes);
    acc.even = SmallGroupStep<Block>(w, x, g, acc.even);
    acc.odd = SmallGroupStep<Block>(w, x, g + 1, acc.odd);
  }
  if (g < num_groups) acc.even = SmallGroupStep<Block>(w, x, g, acc.even);
  if constexpr (Block::kHasMinimum) AddSmallMinima<Block>(w, x, num_groups, &low);
  return FinalSum<Block::kHasMinimum>(acc, low);
}

template <typename Block>
void DotStored(const StoredRows& w, const QuantizedRows& x, int64_t x_row, const Segments& segments,
               const DotOutput& out) {
  const auto* row = reinterpret_cast<const uint8_t*>(w.data);
  for (int64_t r = 0; r < w.num_rows; ++r, row += w.row_bytes) {
    for (int s = 0; s < segments.num_segments; ++s) {
      const int64_t begin = segments.border[s];
      const int64_t num_cols = segments.border[s + 1] - begin;
      const RowPointers pointers(x, x_row, begin);
      const uint8_t* first = row + begin / Block::kLength * Block::kBytes;
      float& result = out.data[s * out.segment_stride + r];
      if constexpr (Block::kLength == 32) {
        result = DotSmallBlocks<Block>(first, pointers, num_cols);
      } else {
        result = DotBlocks<Block>(first, pointers, num_cols);
      }
    }
  }
}

// ---- expansion ------------------------------------------------------------------------------

template <typename Block>
void ExpandStored(const StoredRows& w, int64_t end, const ExpandedRows& out) {
  for (int64_t r = 0; r < w.num_rows; ++r) {
    const auto* row = reinterpret_cast<const uint8_t*>(w.data) + r * w.row_bytes +
                      out.begin / Block::kLength * Block::kBytes;
    int8_t* values = out.values + r * out.stride;
    float* scales = out.scales + r * (out.stride / 16);
    float* minima = out.minima + r * (out.stride / 16);
    for (int64_t k = 0; k < end - out.begin; k += Block::kLength, row += Block::kBytes) {
      const Block block(row);
      [&]<int... g>(std::integer_sequence<int, g...>) {
        (_mm256_storeu_si256(reinterpret_cast<__m256i*>(values + k + 32 * g),
                             block.template Values<g>()),
         ...);
      }
      (std::make_integer_sequence<int, Block::kLength / 32>());
      if constexpr (Block::kLength == 32) {
        scales[k / 16] = scales[k / 16 + 1] = block.scale();
        if constexpr (Block::kHasMinimum) minima[k / 16] = minima[k / 16 + 1] = block.minimum();
      } else {
        block.Scales(scales + k / 16);
        if constexpr (Block::kHasMinimum) block.Minima(minima + k / 16);
      }
    }
  }
}

// ---- expanded weights, any number of activation rows ----------------------------------------

// Adds the groups first, first + 2, ... : with half of the lanes at a time, all accumulators of a
// tile fit the registers.
template <bool kUnsigned, int kRows, int kXRows>
SWITCHYARD_INLINE void TileGroups(const int8_t* const* values, const float* const* scales,
                                  const RowPointers* x, int64_t first, int64_t num_groups,
                                  __m256 (&out)[kRows][kXRows]) {
  __m256 acc[kRows][kXRows];  // local: the compiler keeps it in registers
  for (auto& row_acc : acc) {
    for (__m256& lanes : row_acc) lanes = _mm256_setzero_ps();
  }
  for (int64_t g = first; g < num_groups; g += 2) {
    __m256i w[kRows];
    __m256 w_scales[kRows];
    for (int r = 0; r < kRows; ++r) {
      w[r] = Load256(values[r] + 32 * g);
      w_scales[r] = HalfLanes(scales[r] + 2 * g);
    }
    for (int b = 0; b < kXRows; ++b) {
      const __m256i quants = Load256(x[b].quants + 32 * g);
      const __m256 x_scale = _mm256_broadcast_ss(x[b].scales + g);
      for (int r = 0; r < kRows; ++r) {
        const __m256 sum = IntegerDot<kUnsigned>(w[r], quants);
        acc[r][b] = _mm256_fmadd_ps(sum, _mm256_mul_ps(w_scales[r], x_scale), acc[r][b]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int b = 0; b < kXRows; ++b) out[r][b] = acc[r][b];
  }
}

template <bool kHasMinimum, int kRows, int kXRows>
void Tile(const ExpandedRows& w, int64_t row, const QuantizedRows& x, const RowSelection& x_rows,
          int64_t b_first, int64_t begin, int64_t end, float* out, int64_t row_stride) {
  const int8_t* values[kRows];
  const float* scales[kRows];
  for (int r = 0; r < kRows; ++r) {
    values[r] = w.values + (row + r) * w.stride + (begin - w.begin);
    scales[r] = w.scales + ((row + r) * w.stride + begin - w.begin) / 16;
  }
  const auto pointers = [&]<int... b>(std::integer_sequence<int, b...>) {
    return std::array<RowPointers, kXRows>{RowPointers(x, x_rows[b_first + b], begin)...};
  }
  (std::make_integer_sequence<int, kXRows>());
  const int64_t num_groups = (end - begin) / 32;
  __m256 even[kRows][kXRows], odd[kRows][kXRows];
  TileGroups<kHasMinimum, kRows, kXRows>(values, scales, pointers.data(), 0, num_groups, even);
  TileGroups<kHasMinimum, kRows, kXRows>(values, scales, pointers.data(), 1, num_groups, odd);
  for (int b = 0; b < kXRows; ++b) {
    for (int r = 0; r < kRows; ++r) {
      Lanes low;
      if constexpr (kHasMinimum) {
        AddMinima(w.minima + ((row + r) * w.stride + begin - w.begin) / 16, pointers[b].half_sums,
                  2 * num_groups, &low);
      }
      out[b * row_stride + r] = FinalSum<kHasMinimum>({even[r][b], odd[r][b]}, low);
    }
  }
}

template <bool kHasMinimum, int kXRows>
SWITCHYARD_INLINE void TileRows(const ExpandedRows& w, const QuantizedRows& x,
                                const RowSelection& x_rows, int64_t b_first, int64_t begin,
                                int64_t end, float* out, int64_t row_stride) {
  int64_t r = 0;
  for (; r + 2 <= w.num_rows; r += 2) {
    Tile<kHasMinimum, 2, kXRows>(w, r, x, x_rows, b_first, begin, end, out + r, row_stride);
  }
  for (; r < w.num_rows; ++r) {
    Tile<kHasMinimum, 1, kXRows>(w, r, x, x_rows, b_first, begin, end, out + r, row_stride);
  }
}

template <bool kHasMinimum>
void DotExpandedAs(const ExpandedRows& w, const QuantizedRows& x, const RowSelection& x_rows,
                   const Segments& segments, const DotOutput& out) {
  for (int s = 0; s < segments.num_segments; ++s) {
    const int64_t begin = segments.border[s];
    const int64_t end = segments.border[s + 1];
    float* segment_out = out.data + s * out.segment_stride;
    int64_t b = 0;
    for (; b + 4 <= x_rows.count; b += 4) {
      TileRows<kHasMinimum, 4>(w, x, x_rows, b, begin, end, segment_out + b * out.row_stride,
                               out.row_stride);
    }
    for (; b + 2 <= x_rows.count; b += 2) {
      TileRows<kHasMinimum, 2>(w, x, x_rows, b, begin, end, segment_out + b * out.row_stride,
                               out.row_stride);
    }
    if (b < x_rows.count) {
      TileRows<kHasMinimum, 1>(w, x, x_rows, b, begin, end, segment_out + b * out.row_stride,
                               out.row_stride);
    }
  }
}

void DotExpanded(const ExpandedRows& w, const QuantizedRows& x, const RowSelection& x_rows,
                 const Segments& segments, const DotOutput& out) {
  if (w.has_minimum) {
    DotExpandedAs<true>(w, x, x_rows, segments, out);
  } else {
    DotExpandedAs<false>(w, x, x_rows, segments, out);
  }
}

template <typename Block>
constexpr FormatFunctions kFormat = {DotStored<Block>, ExpandStored<Block>, nullptr};

FormatFunctions Format(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
      return kFormat<Q8_0Block>;
    case DType::kQ4_0:
      return kFormat<Q4_0Block>;
    case DType::kQ4_1:
      return kFormat<Q4_1Block>;
    case DType::kQ5_0:
      return kFormat<Q5_0Block>;
    case DType::kQ5_1:
      return kFormat<Q5_1Block>;
    case DType::kIQ4_NL:
      return kFormat<Iq4NlBlock>;
    case DType::kIQ4_XS:
      return kFormat<Iq4XsBlock>;
    case DType::kQ4_K:
      return kFormat<Q4KBlock>;
    case DType::kQ5_K:
      return kFormat<Q5KBlock>;
    case DType::kQ6_K:
      return kFormat<Q6KBlock>;
    case DType::kIQ3_S:
      return kFormat<Iq3SBlock>;
    case DType::kIQ3_XXS:
      return kFormat<Iq3XxsBlock>;
    case DType::kF32:
      return {nullptr, nullptr, DotF32Avx2};
    case DType::kF16:
      return {nullptr, nullptr, DotF16Avx2};
    case DType::kBF16:
      return {nullptr, nullptr, DotBF16Avx2};
    default:
      return {};
  }
}

}  // namespace

const LevelFunctions kAvx2Functions = {Format, DotExpanded, QuantizeRowAvx2};

}  // namespace switchyard::kernels::cpu
