// The AVX2 level: products over expanded panels.
#include <cstdint>
#include <immintrin.h>
#include <utility>

#include "kernels/cpu/panel_dot_avx2.h"

namespace switchyard::kernels::cpu {
namespace {

// Activation rows of a tile. With the sixteen rows of a panel the integer sums take eight
// registers.
constexpr int kTileRows = 4;

// A tile: one panel by kB activation rows over columns [begin, end). With `carry` the sums go on
// from those in `out`.
//
// kAdded: pair sums that are added in 16 bits. Weights are then codes, with half of their range
// added unless they have a minimum: codes of 5 bits allow 4 (4 * 2 * 31 * 127 = 31496), of 6 bits 2
// (32004), of 7 bits 1 (32258). 0: weights are any bytes, |w| by activations with the sign of w.
template <int kAdded, bool kHasMinimum, int kRunLength, int kB>
SWITCHYARD_INLINE void DotTile(const ExpandedPanel& w, const RowPointers<kB>& x,
                               const float* const (&x_sums)[kB], int64_t begin, int64_t end,
                               bool carry, float* out, int64_t row_stride) {
  constexpr bool kSigned = kAdded == 0;
  constexpr bool kHasOffset = !kSigned && !kHasMinimum;
  constexpr int kRunQuads = kRunLength / 4;
  constexpr int kChunk = kSigned ? 1 : kAdded;
  const __m256i too_much =
      _mm256_set1_epi8(static_cast<char>(kHasOffset ? 128 - (1 << (w.value_bits - 1)) : 128));
  const __m128i offset_shift = _mm_cvtsi32_si128(kHasOffset ? 8 - w.value_bits : 0);
  const int64_t first_factor = (begin - w.begin) / kRunLength * kPanelRows;
  const uint8_t* values = w.values + (begin - w.begin) * kPanelRows;
  const float* scales = w.scales + first_factor;
  const float* minima = kHasMinimum ? w.minima + first_factor : nullptr;
  alignas(32) float acc[kHalves][kB][kHalfRows] = {};  // the registers are for the integer sums
  for (int b = 0; carry && b < kB; ++b) {
    for (int h = 0; h < kHalves; ++h) {
      _mm256_store_ps(acc[h][b], _mm256_loadu_ps(out + b * row_stride + kHalfRows * h));
    }
  }
  for (int64_t run = begin; run < end; run += kRunLength) {
    __m256i sums[kHalves][kB];
    Unroll<kRunQuads / kChunk>([&](auto chunk) SWITCHYARD_INLINE_LAMBDA {
      __m256i pairs[kHalves][kB];
      Unroll<kChunk>([&](auto i) SWITCHYARD_INLINE_LAMBDA {
        constexpr int t = chunk * kChunk + i;
        __m256i weights[kHalves];
        for (int h = 0; h < kHalves; ++h) {
          weights[h] = _mm256_sub_epi8(Load(values + 64 * t + kHalfBytes * h), too_much);
        }
        for (int b = 0; b < kB; ++b) {
          const __m256i activations = Broadcast4(x.quants[b] + run + 4 * t);
          for (int h = 0; h < kHalves; ++h) {
            const __m256i products =
                kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(weights[h]),
                                               _mm256_sign_epi8(activations, weights[h]))
                        : _mm256_maddubs_epi16(weights[h], activations);
            pairs[h][b] = i == 0 ? products : _mm256_add_epi16(pairs[h][b], products);
            if constexpr (i == kChunk - 1) {
              const __m256i wide = _mm256_madd_epi16(pairs[h][b], _mm256_set1_epi16(1));
              sums[h][b] = chunk == 0 ? wide : _mm256_add_epi32(sums[h][b], wide);
            }
          }
        }
      });
    });
    for (int b = 0; b < kB; ++b) {
      const __m256 x_scale = _mm256_broadcast_ss(x.scales[b] + run / 32);
      __m256i offset = _mm256_setzero_si256();
      if constexpr (kHasOffset) {
        const int32_t* offsets = x.half_offsets[b] + run / 16;
        offset = _mm256_set1_epi32(offsets[0]);
        if constexpr (kRunLength == 32) {
          offset = _mm256_add_epi32(offset, _mm256_set1_epi32(offsets[1]));
        }
        offset = _mm256_sra_epi32(offset, offset_shift);
      }
      for (int h = 0; h < kHalves; ++h) {
        if constexpr (kHasOffset) sums[h][b] = _mm256_add_epi32(sums[h][b], offset);
        const __m256 factor = _mm256_mul_ps(_mm256_loadu_ps(scales + kHalfRows * h), x_scale);
        __m256 lanes =
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[h][b]), factor, _mm256_load_ps(acc[h][b]));
        if constexpr (kHasMinimum) {
          lanes = _mm256_fmadd_ps(_mm256_loadu_ps(minima + kHalfRows * h),
                                  _mm256_broadcast_ss(x_sums[b] + run / kRunLength), lanes);
        }
        _mm256_store_ps(acc[h][b], lanes);
      }
    }
    values += kRunLength * kPanelRows;
    scales += kPanelRows;
    if constexpr (kHasMinimum) minima += kPanelRows;
  }
  for (int b = 0; b < kB; ++b) {
    for (int h = 0; h < kHalves; ++h) {
      _mm256_storeu_ps(out + b * row_stride + kHalfRows * h, _mm256_load_ps(acc[h][b]));
    }
  }
}

template <int kAdded, bool kHasMinimum, int kRunLength, int kB>
void DotExpandedRows(const ExpandedPanel* panels, int64_t num_panels, const QuantizedRows& x,
                     const RowSelection& x_rows, int64_t first, int64_t begin, int64_t end,
                     bool carry, float* out, int64_t row_stride) {
  const RowPointers<kB> pointers(x, x_rows, first);
  const float* x_sums[kB];
  for (int b = 0; b < kB; ++b) {
    const int64_t at = x_rows[first + b] * x.padded_cols / kRunLength;
    x_sums[b] = (kRunLength == 16 ? x.half_sums : x.group_sums) + at;
  }
  for (int64_t p = 0; p < num_panels; ++p) {
    DotTile<kAdded, kHasMinimum, kRunLength, kB>(panels[p], pointers, x_sums, begin, end, carry,
                                                 out + kPanelRows * p, row_stride);
  }
}

// Activation rows outside, so that those of a tile stay in the first-level cache while the expanded
// panels come from the second.
template <int kAdded, bool kHasMinimum, int kRunLength>
void DotExpandedAs(const ExpandedPanel* panels, int64_t num_panels, const QuantizedRows& x,
                   const RowSelection& x_rows, const Segments& segments, bool carry,
                   const DotOutput& out) {
  for (int s = 0; s < segments.num_segments; ++s) {
    const int64_t begin = segments.border[s];
    const int64_t end = segments.border[s + 1];
    const auto rows = [&](auto count, int64_t first) {
      DotExpandedRows<kAdded, kHasMinimum, kRunLength, count>(
          panels, num_panels, x, x_rows, first, begin, end, carry,
          out.data + s * out.segment_stride + first * out.row_stride, out.row_stride);
    };
    int64_t b = 0;
    for (; b + kTileRows <= x_rows.count; b += kTileRows) {
      rows(std::integral_constant<int, kTileRows>(), b);
    }
    for (; b + 2 <= x_rows.count; b += 2) rows(std::integral_constant<int, 2>(), b);
    if (b < x_rows.count) rows(std::integral_constant<int, 1>(), b);
  }
}

// The form for weights like those of a panel.
template <int kRunLength>
auto DotExpandedFor(const ExpandedPanel& panel) {
  if (panel.has_minimum) {
    return panel.value_bits <= 5 ? DotExpandedAs<4, true, kRunLength>
                                 : DotExpandedAs<2, true, kRunLength>;
  }
  if (panel.value_bits <= 5) return DotExpandedAs<4, false, kRunLength>;
  if (panel.value_bits == 6) return DotExpandedAs<2, false, kRunLength>;
  if (panel.value_bits == 7) return DotExpandedAs<1, false, kRunLength>;
  return DotExpandedAs<0, false, kRunLength>;
}

}  // namespace

void DotExpandedAvx2(const ExpandedPanel* panels, int64_t num_panels, const QuantizedRows& x,
                     const RowSelection& x_rows, const Segments& segments, const DotOutput& out) {
  DotExpandedPartAvx2(panels, num_panels, x, x_rows, segments, false, out);
}

void DotExpandedPartAvx2(const ExpandedPanel* panels, int64_t num_panels, const QuantizedRows& x,
                         const RowSelection& x_rows, const Segments& segments, bool carry,
                         const DotOutput& out) {
  if (num_panels == 0) return;
  const auto dot =
      panels[0].run_length == 32 ? DotExpandedFor<32>(panels[0]) : DotExpandedFor<16>(panels[0]);
  dot(panels, num_panels, x, x_rows, segments, carry, out);
}

}  // namespace switchyard::kernels::cpu
