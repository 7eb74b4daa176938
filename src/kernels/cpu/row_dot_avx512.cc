// The AVX-512 VNNI level: block formats. Lanes 0-7 of a vector are an even, 8-15 an odd group of 32
// columns (row_dot.h), so one vector of 64 weights is one step.
#include "kernels/cpu/row_dot_avx512.h"

#include <array>
#include <immintrin.h>
#include <utility>

#include "kernels/cpu/decode_avx512.h"
#include "kernels/cpu/row_dot.h"

namespace switchyard::kernels::cpu {
namespace {

SWITCHYARD_INLINE __m256 Fold(__m512 x) {
  return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}

// Final sum of row_dot.h, from s[0..7].
SWITCHYARD_INLINE float SumOf8(__m256 s) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

template <bool kHasMinimum>
SWITCHYARD_INLINE float FinalSum(__m512 acc, __m512 low) {
  __m256 s = Fold(acc);
  if constexpr (kHasMinimum) s = _mm256_add_ps(s, Fold(low));
  return SumOf8(s);
}

// Factors of 16 halves -> lanes of step i of a block: lane l takes half 4 * i + l / 4.
template <int i>
SWITCHYARD_INLINE __m512 LanesOfStep(__m512 halves) {
  const __m512i quarter = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  return _mm512_permutexvar_ps(_mm512_add_epi32(quarter, _mm512_set1_epi32(4 * i)), halves);
}

// Pointers into one quantised activation row, from a column on.
struct RowPointers {
  const int8_t* quants;
  const float* scales;
  const int32_t* offset_sums;
  const float* half_sums;

  SWITCHYARD_INLINE RowPointers(const QuantizedRows& x, int64_t row, int64_t column)
      : quants(x.quants + row * x.padded_cols + column),
        scales(x.scales + (row * x.padded_cols + column) / 32),
        offset_sums(x.offset_sums + (row * x.padded_cols + column) / 4),
        half_sums(x.half_sums + (row * x.padded_cols + column) / 16) {}
};

template <bool kUnsigned>
SWITCHYARD_INLINE __m512 IntegerDot(__m512i values, __m512i quants, const int32_t* offset_sums) {
  const __m512i start = kUnsigned ? _mm512_setzero_si512() : Load512(offset_sums);
  return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start, values, quants));
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

// Sums of four products of unsigned `magnitudes` and of quants with the sign of the weights.
SWITCHYARD_INLINE __m512 SignedDot(__m512i magnitudes, __mmask64 negative, __m512i quants) {
  const __m512i signed_quants =
      _mm512_mask_sub_epi8(quants, negative, _mm512_setzero_si512(), quants);
  return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), magnitudes, signed_quants));
}

template <typename Block, int i>
SWITCHYARD_INLINE __m512 BlockStep(const Block& block, __m512 scales, const RowPointers& x,
                                   int64_t k, __m512 acc) {
  const __m512i quants = Load512(x.quants + k + 64 * i);
  __m512 sum;
  if constexpr (requires { block.template Negative<i>(); }) {
    sum = SignedDot(block.template Magnitudes<i>(), block.template Negative<i>(), quants);
  } else {
    sum = IntegerDot<Block::kUnsigned>(block.template Values<i>(), quants,
                                       x.offset_sums + (k + 64 * i) / 4);
  }
  return _mm512_fmadd_ps(sum, LanesOfStep<i>(scales), acc);
}

// One row of a format with 256-element blocks.
template <typename Block>
SWITCHYARD_INLINE float DotBlocks(const uint8_t* w, const RowPointers& x, int64_t num_cols) {
  const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  __m512 acc = _mm512_setzero_ps();
  __m512 low = _mm512_setzero_ps();
  for (int64_t k = 0; k < num_cols; k += 256, w += Block::kBytes) {
    Prefetch<Block::kBytes>(w);
    const Block block(w);
    const __m512 x_scales =
        _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(x.scales + k / 32)));
    const __m512 scales = _mm512_mul_ps(block.scales(), x_scales);
    if constexpr (Block::kHasMinimum) {
      low = _mm512_fmadd_ps(block.minima(), _mm512_loadu_ps(x.half_sums + k / 16), low);
    }
    acc = BlockStep<Block, 0>(block, scales, x, k, acc);
    acc = BlockStep<Block, 1>(block, scales, x, k, acc);
    acc = BlockStep<Block, 2>(block, scales, x, k, acc);
    acc = BlockStep<Block, 3>(block, scales, x, k, acc);
  }
  return FinalSum<Block::kHasMinimum>(acc, low);
}

// Lanes 0-7: the first of two floats, lanes 8-15: the second.
SWITCHYARD_INLINE __m512 PairLanes(const float* pair) {
  const __m128 both = _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(pair)));
  const __m512i lanes = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(1), 1);
  return _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(both));
}

// The two groups at column k; the second counts only if `both`.
template <typename Pair>
SWITCHYARD_INLINE void PairStep(const uint8_t* w, const RowPointers& x, int64_t k, bool both,
                                __m512* acc, __m512* low) {
  Prefetch<2 * Pair::kBytes>(w);
  const Pair pair(w);
  const __m512i quants = Load512(x.quants + k);
  __m512 sum;
  if constexpr (requires { pair.SignedValues(); }) {
    // Rows of this format may be so long that loading offset_sums too would overflow the L1 cache.
    const __m512i values = pair.SignedValues();
    sum = SignedDot(_mm512_abs_epi8(values), _mm512_movepi8_mask(values), quants);
  } else {
    sum = IntegerDot<Pair::kUnsigned>(pair.Values(), quants, x.offset_sums + k / 4);
  }
  const __m512 scales = _mm512_mul_ps(pair.scales(), PairLanes(x.scales + k / 32));
  const __mmask16 lanes = both ? 0xffff : 0x00ff;
  *acc = _mm512_mask3_fmadd_ps(sum, scales, *acc, lanes);
  if constexpr (Pair::kHasMinimum) {
    // Halves of groups 2p and 2p + 1 belong to lanes 4p..4p+3 modulo 16.
    const auto halves = static_cast<__mmask16>((both ? 15u : 3u) << k / 64 % 4 * 4);
    const __m512 half_sums = _mm512_loadu_ps(x.half_sums + k / 256 * 16);
    *low = _mm512_mask3_fmadd_ps(pair.minima(), half_sums, *low, halves);
  }
}

// One row of a format with 32-element blocks.
template <typename Pair>
SWITCHYARD_INLINE float DotPairs(const uint8_t* w, const RowPointers& x, int64_t num_cols) {
  __m512 acc = _mm512_setzero_ps();
  __m512 low = _mm512_setzero_ps();
  int64_t k = 0;
  for (; k + 64 <= num_cols; k += 64, w += 2 * Pair::kBytes) {
    PairStep<Pair>(w, x, k, true, &acc, &low);
  }
  if (k < num_cols) PairStep<Pair>(w, x, k, false, &acc, &low);
  return FinalSum<Pair::kHasMinimum>(acc, low);
}

template <typename Block>
constexpr bool kIsPair = requires(const Block block) {
  block.Values();
};

template <typename Block>
void DotStored(const StoredRows& w, const QuantizedRows& x, int64_t x_row, const Segments& segments,
               const DotOutput& out) {
  const auto* row = reinterpret_cast<const uint8_t*>(w.data);
  for (int64_t r = 0; r < w.num_rows; ++r, row += w.row_bytes) {
    for (int s = 0; s < segments.num_segments; ++s) {
      const int64_t begin = segments.border[s];
      const int64_t num_cols = segments.border[s + 1] - begin;
      const RowPointers pointers(x, x_row, begin);
      float& result = out.data[s * out.segment_stride + r];
      if constexpr (kIsPair<Block>) {
        result = DotPairs<Block>(row + begin / 32 * Block::kBytes, pointers, num_cols);
      } else {
        result = DotBlocks<Block>(row + begin / 256 * Block::kBytes, pointers, num_cols);
      }
    }
  }
}

// ---- expansion ------------------------------------------------------------------------------

template <bool kUnsigned>
SWITCHYARD_INLINE void StoreValues(__m512i values, int8_t* out) {
  if constexpr (!kUnsigned) values = _mm512_xor_si512(values, _mm512_set1_epi8(-128));
  _mm512_storeu_si512(out, values);
}

template <typename Block>
SWITCHYARD_INLINE void ExpandBlockRow(const uint8_t* w, int64_t num_cols, int8_t* values,
                                      float* scales, float* minima) {
  if constexpr (kIsPair<Block>) {
    // One of four lanes of 128 bits holds (first, first, second, second).
    const __m512i halves = _mm512_castsi128_si512(_mm_set_epi32(8, 8, 0, 0));
    for (int64_t k = 0; k < num_cols; k += 64, w += 2 * Block::kBytes) {
      const Block pair(w);
      StoreValues<Block::kUnsigned>(pair.Values(), values + k);
      const __m512 lanes = _mm512_permutexvar_ps(halves, pair.scales());
      _mm_storeu_ps(scales + k / 16, _mm512_castps512_ps128(lanes));
      if constexpr (Block::kHasMinimum) {
        _mm_storeu_ps(minima + k / 16, _mm512_castps512_ps128(pair.minima()));
      }
    }
  } else {
    for (int64_t k = 0; k < num_cols; k += 256, w += Block::kBytes) {
      const Block block(w);
      StoreValues<Block::kUnsigned>(block.template Values<0>(), values + k);
      StoreValues<Block::kUnsigned>(block.template Values<1>(), values + k + 64);
      StoreValues<Block::kUnsigned>(block.template Values<2>(), values + k + 128);
      StoreValues<Block::kUnsigned>(block.template Values<3>(), values + k + 192);
      _mm512_storeu_ps(scales + k / 16, block.scales());
      if constexpr (Block::kHasMinimum) _mm512_storeu_ps(minima + k / 16, block.minima());
    }
  }
}

template <typename Block>
void ExpandStored(const StoredRows& w, int64_t end, const ExpandedRows& out) {
  const int64_t offset = out.begin / (kIsPair<Block> ? 32 : 256) * Block::kBytes;
  for (int64_t r = 0; r < w.num_rows; ++r) {
    const auto* row = reinterpret_cast<const uint8_t*>(w.data) + r * w.row_bytes + offset;
    ExpandBlockRow<Block>(row, end - out.begin, out.values + r * out.stride,
                          out.scales + r * (out.stride / 16), out.minima + r * (out.stride / 16));
  }
}

// ---- expanded weights, any number of activation rows ----------------------------------------

// Factors of 4 halves -> 16 lanes, lane l takes half l / 4.
SWITCHYARD_INLINE __m512 HalfLanes(const float* halves) {
  const __m512i select = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  return _mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(halves)), select);
}

template <bool kUnsigned, int kRows, int kXRows>
SWITCHYARD_INLINE void TileStep(const int8_t* const* values, const float* const* scales,
                                const RowPointers* x, int64_t k, __mmask16 lanes,
                                __m512 (&acc)[kRows][kXRows]) {
  __m512i w[kRows];
  __m512 w_scales[kRows];
  for (int r = 0; r < kRows; ++r) {
    w[r] = Load512(values[r] + k);
    if constexpr (!kUnsigned) w[r] = _mm512_xor_si512(w[r], _mm512_set1_epi8(-128));
    w_scales[r] = HalfLanes(scales[r] + k / 16);
  }
  for (int b = 0; b < kXRows; ++b) {
    const __m512i quants = Load512(x[b].quants + k);
    const __m512 x_scales = PairLanes(x[b].scales + k / 32);
    for (int r = 0; r < kRows; ++r) {
      const __m512 sum = IntegerDot<kUnsigned>(w[r], quants, x[b].offset_sums + k / 4);
      acc[r][b] =
          _mm512_mask3_fmadd_ps(sum, _mm512_mul_ps(w_scales[r], x_scales), acc[r][b], lanes);
    }
  }
}

// Sum of minimum * half_sum over the halves of a segment, in the 16 lanes of row_dot.h.
SWITCHYARD_INLINE __m512 MinimumSum(const float* minima, const float* half_sums,
                                    int64_t num_halves) {
  __m512 low = _mm512_setzero_ps();
  int64_t h = 0;
  for (; h + 16 <= num_halves; h += 16) {
    low = _mm512_fmadd_ps(_mm512_loadu_ps(minima + h), _mm512_loadu_ps(half_sums + h), low);
  }
  if (h < num_halves) {
    const auto lanes = static_cast<__mmask16>((1u << (num_halves - h)) - 1);
    low = _mm512_mask3_fmadd_ps(_mm512_maskz_loadu_ps(lanes, minima + h),
                                _mm512_maskz_loadu_ps(lanes, half_sums + h), low, lanes);
  }
  return low;
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
  __m512 acc[kRows][kXRows];
  for (auto& row_acc : acc) {
    for (__m512& lane : row_acc) lane = _mm512_setzero_ps();
  }
  const int64_t num_cols = end - begin;
  int64_t k = 0;
  for (; k + 64 <= num_cols; k += 64) {
    TileStep<kHasMinimum, kRows, kXRows>(values, scales, pointers.data(), k, 0xffff, acc);
  }
  if (k < num_cols) {
    TileStep<kHasMinimum, kRows, kXRows>(values, scales, pointers.data(), k, 0x00ff, acc);
  }
  for (int b = 0; b < kXRows; ++b) {
    for (int r = 0; r < kRows; ++r) {
      __m512 low = _mm512_setzero_ps();
      if constexpr (kHasMinimum) {
        low = MinimumSum(w.minima + ((row + r) * w.stride + begin - w.begin) / 16,
                         pointers[b].half_sums, num_cols / 16);
      }
      out[b * row_stride + r] = FinalSum<kHasMinimum>(acc[r][b], low);
    }
  }
}

template <bool kHasMinimum, int kXRows>
SWITCHYARD_INLINE void TileRows(const ExpandedRows& w, const QuantizedRows& x,
                                const RowSelection& x_rows, int64_t b_first, int64_t begin,
                                int64_t end, float* out, int64_t row_stride) {
  int64_t r = 0;
  for (; r + 4 <= w.num_rows; r += 4) {
    Tile<kHasMinimum, 4, kXRows>(w, r, x, x_rows, b_first, begin, end, out + r, row_stride);
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
      return kFormat<Q8_0Pair>;
    case DType::kQ4_0:
      return kFormat<Q4_0Pair>;
    case DType::kQ4_1:
      return kFormat<Q4_1Pair>;
    case DType::kQ5_0:
      return kFormat<Q5_0Pair>;
    case DType::kQ5_1:
      return kFormat<Q5_1Pair>;
    case DType::kIQ4_NL:
      return kFormat<Iq4NlPair>;
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
      return {nullptr, nullptr, DotF32Avx512};
    case DType::kF16:
      return {nullptr, nullptr, DotF16Avx512};
    case DType::kBF16:
      return {nullptr, nullptr, DotBF16Avx512};
    default:
      return {};
  }
}

}  // namespace

const LevelFunctions kAvx512VnniFunctions = {Format, DotExpanded, QuantizeRowAvx512};

}  // namespace switchyard::kernels::cpu
