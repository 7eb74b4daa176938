// The AVX-512 VNNI level: float weights, and quantisation of activations.
#include <cstdint>
#include <immintrin.h>

#include "kernels/cpu/float_dot.h"

namespace switchyard::kernels::cpu {
namespace {

struct F32Loader {
  static constexpr int kBytes = 4;
  static __m512 Load(const std::byte* bytes) { return _mm512_loadu_ps(bytes); }
  static __m512 Load(const std::byte* bytes, __mmask16 lanes) {
    return _mm512_maskz_loadu_ps(lanes, bytes);
  }
};
struct F16Loader {
  static constexpr int kBytes = 2;
  static __m512 Load(const std::byte* bytes) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)));
  }
  static __m512 Load(const std::byte* bytes, __mmask16 lanes) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, bytes));
  }
};
struct BF16Loader {
  static constexpr int kBytes = 2;
  static __m512 Widen(__m256i words) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
  }
  static __m512 Load(const std::byte* bytes) {
    return Widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes)));
  }
  static __m512 Load(const std::byte* bytes, __mmask16 lanes) {
    return Widen(_mm256_maskz_loadu_epi16(lanes, bytes));
  }
};

float FinalSum(__m512 acc) {
  const __m256 s = _mm256_add_ps(_mm512_castps512_ps256(acc), _mm512_extractf32x8_ps(acc, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// How far ahead of the weights to fetch when they are a single stream.
constexpr int64_t kPrefetchBytes = 2048;

// With one activation row the weights come from memory, where a single stream is fastest as long as
// the activations stay in the first-level cache.
constexpr int64_t kMaxSingleColumns = 4096;

// kRows weight rows by kXRows activation rows over one segment.
template <typename Loader, int kRows, int kXRows>
void Tile(const std::byte* w, int64_t row_bytes, const float* const* x, int64_t num_cols,
          float* out, int64_t row_stride) {
  __m512 acc[kRows][kXRows];
  for (auto& row_acc : acc) {
    for (__m512& lane : row_acc) lane = _mm512_setzero_ps();
  }
  int64_t c = 0;
  for (; c + 16 <= num_cols; c += 16) {
    if constexpr (kRows == 1 && kXRows == 1) {
      _mm_prefetch(reinterpret_cast<const char*>(w + c * Loader::kBytes + kPrefetchBytes),
                   _MM_HINT_T0);
    }
    __m512 weights[kRows];
    for (int r = 0; r < kRows; ++r) {
      weights[r] = Loader::Load(w + r * row_bytes + c * Loader::kBytes);
    }
    for (int b = 0; b < kXRows; ++b) {
      const __m512 values = _mm512_loadu_ps(x[b] + c);
      for (int r = 0; r < kRows; ++r) acc[r][b] = _mm512_fmadd_ps(weights[r], values, acc[r][b]);
    }
  }
  if (c < num_cols) {
    const auto lanes = static_cast<__mmask16>((1u << (num_cols - c)) - 1);
    for (int r = 0; r < kRows; ++r) {
      const __m512 weights = Loader::Load(w + r * row_bytes + c * Loader::kBytes, lanes);
      for (int b = 0; b < kXRows; ++b) {
        acc[r][b] = _mm512_mask3_fmadd_ps(weights, _mm512_maskz_loadu_ps(lanes, x[b] + c),
                                          acc[r][b], lanes);
      }
    }
  }
  for (int b = 0; b < kXRows; ++b) {
    for (int r = 0; r < kRows; ++r) out[b * row_stride + r] = FinalSum(acc[r][b]);
  }
}

template <typename Loader, int kXRows>
void TileRows(const StoredRows& w, const float* const* x, int64_t begin, int64_t num_cols,
              float* out, int64_t row_stride) {
  const std::byte* data = w.data + begin * Loader::kBytes;
  int64_t r = 0;
  const bool single = kXRows == 1 && num_cols <= kMaxSingleColumns;
  for (; !single && r + 4 <= w.num_rows; r += 4) {
    Tile<Loader, 4, kXRows>(data + r * w.row_bytes, w.row_bytes, x, num_cols, out + r, row_stride);
  }
  for (; r < w.num_rows; ++r) {
    Tile<Loader, 1, kXRows>(data + r * w.row_bytes, w.row_bytes, x, num_cols, out + r, row_stride);
  }
}

// Weight rows that stay in the cache while all activation rows pass by.
constexpr int64_t kBlockRows = 16;

template <typename Loader>
void DotFloat(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
              const Segments& segments, const DotOutput& out) {
  for (int64_t first = 0; first < w.num_rows; first += kBlockRows) {
    const int64_t rest = w.num_rows - first;
    const StoredRows rows = {w.data + first * w.row_bytes, w.row_bytes,
                             rest < kBlockRows ? rest : kBlockRows};
    for (int s = 0; s < segments.num_segments; ++s) {
      const int64_t begin = segments.border[s];
      const int64_t num_cols = segments.border[s + 1] - begin;
      float* block_out = out.data + s * out.segment_stride + first;
      int64_t b = 0;
      for (; b + 4 <= x_rows.count; b += 4) {
        const float* four[4];
        for (int i = 0; i < 4; ++i) four[i] = x.data + x_rows[b + i] * x.row_stride + begin;
        TileRows<Loader, 4>(rows, four, begin, num_cols, block_out + b * out.row_stride,
                            out.row_stride);
      }
      for (; b < x_rows.count; ++b) {
        const float* one = x.data + x_rows[b] * x.row_stride + begin;
        TileRows<Loader, 1>(rows, &one, begin, num_cols, block_out + b * out.row_stride,
                            out.row_stride);
      }
    }
  }
}

}  // namespace

void DotF32Avx512(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                  const Segments& segments, const DotOutput& out) {
  DotFloat<F32Loader>(w, x, x_rows, segments, out);
}
void DotF16Avx512(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                  const Segments& segments, const DotOutput& out) {
  DotFloat<F16Loader>(w, x, x_rows, segments, out);
}
void DotBF16Avx512(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                   const Segments& segments, const DotOutput& out) {
  DotFloat<BF16Loader>(w, x, x_rows, segments, out);
}

void QuantizeRowAvx512(const float* values, const QuantizedRows& out, int64_t row) {
  const int64_t base = row * out.padded_cols;
  const __m512i magnitude_bits = _mm512_set1_epi32(0x7fffffff);
  for (int64_t k = 0; k < out.padded_cols; k += kGroupLength) {
    const int64_t rest = out.cols - k;
    const uint32_t valid = rest >= 32 ? 0xffffffffu : rest > 0 ? (1u << rest) - 1 : 0;
    const __m512 x0 = _mm512_maskz_loadu_ps(static_cast<__mmask16>(valid), values + k);
    const __m512 x1 = _mm512_maskz_loadu_ps(static_cast<__mmask16>(valid >> 16), values + k + 16);
    const __m512i largest =
        _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x0), magnitude_bits),
                         _mm512_and_si512(_mm512_castps_si512(x1), magnitude_bits));
    const float scale = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(
                            static_cast<int>(_mm512_reduce_max_epu32(largest))))) /
                        127.0f;
    const bool is_tiny = scale < 0x1p-126f;
    const bool is_normal = scale >= 0x1p-126f && scale <= 3.402823466e38f;
    const __m512 inverse = _mm512_set1_ps(is_normal ? 1.0f / scale : 0.0f);
    const auto keep = static_cast<__mmask16>(is_normal ? 0xffff : 0);
    const float stored = is_tiny ? 0.0f : scale;
    const __m512i q0 = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(x0, inverse));
    const __m512i q1 = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(x1, inverse));
    const __m256i quants = _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm512_cvtsepi32_epi8(q0)), _mm512_cvtsepi32_epi8(q1), 1);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.quants + base + k), quants);
    out.scales[(base + k) / 32] = stored;
    const __m256i sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), quants);
    const __m256i pairs = _mm256_hadd_epi32(sums, sums);
    const __m256i fours = _mm256_hadd_epi32(pairs, pairs);
    const int sum16[2] = {_mm256_extract_epi32(fours, 0), _mm256_extract_epi32(fours, 4)};
    for (int h = 0; h < 2; ++h) {
      out.half_offsets[(base + k) / 16 + h] = -128 * sum16[h];
      out.half_sums[(base + k) / 16 + h] = stored * static_cast<float>(sum16[h]);
    }
    out.group_sums[(base + k) / 32] = stored * static_cast<float>(sum16[0] + sum16[1]);
  }
}

}  // namespace switchyard::kernels::cpu
