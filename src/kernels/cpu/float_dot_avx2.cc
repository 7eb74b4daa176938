// The AVX2 level: float weights, and quantisation of activations.
#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "kernels/cpu/float_dot.h"

namespace switchyard::kernels::cpu {
namespace {

struct F32Loader {
  static constexpr int kBytes = 4;
  static __m256 Load(const std::byte* bytes) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(bytes));
  }
};
struct F16Loader {
  static constexpr int kBytes = 2;
  static __m256 Load(const std::byte* bytes) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
};
struct BF16Loader {
  static constexpr int kBytes = 2;
  static __m256 Load(const std::byte* bytes) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
  }
};

// Lanes 0-7 and 8-15 of panel_dot.h.
struct Lanes {
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
};

float FinalSum(const Lanes& acc) {
  const __m256 s = _mm256_add_ps(acc.low, acc.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// All ones in the first `count` of eight lanes.
__m256i FirstLanes(int64_t count) {
  const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
}

// The last, partial vector of a segment: lanes past the end keep their sum. Weights are read past
// the end, which the margin of weight matrices allows; activations are not.
__m256 AddSome(__m256 weights, const float* x, int64_t count, __m256 acc) {
  const __m256i lanes = FirstLanes(count);
  const __m256 sum = _mm256_fmadd_ps(weights, _mm256_maskload_ps(x, lanes), acc);
  return _mm256_blendv_ps(acc, sum, _mm256_castsi256_ps(lanes));
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
  Lanes acc[kRows][kXRows];
  int64_t c = 0;
  for (; c + 16 <= num_cols; c += 16) {
    if constexpr (kRows == 1 && kXRows == 1) {
      _mm_prefetch(reinterpret_cast<const char*>(w + c * Loader::kBytes + kPrefetchBytes),
                   _MM_HINT_T0);
    }
    for (int r = 0; r < kRows; ++r) {
      const std::byte* weights = w + r * row_bytes + c * Loader::kBytes;
      const __m256 low = Loader::Load(weights);
      const __m256 high = Loader::Load(weights + 8 * Loader::kBytes);
      for (int b = 0; b < kXRows; ++b) {
        acc[r][b].low = _mm256_fmadd_ps(low, _mm256_loadu_ps(x[b] + c), acc[r][b].low);
        acc[r][b].high = _mm256_fmadd_ps(high, _mm256_loadu_ps(x[b] + c + 8), acc[r][b].high);
      }
    }
  }
  const int64_t rest = num_cols - c;
  if (rest > 0) {
    for (int r = 0; r < kRows; ++r) {
      const std::byte* weights = w + r * row_bytes + c * Loader::kBytes;
      for (int b = 0; b < kXRows; ++b) {
        acc[r][b].low = AddSome(Loader::Load(weights), x[b] + c, rest, acc[r][b].low);
        if (rest > 8) {
          acc[r][b].high = AddSome(Loader::Load(weights + 8 * Loader::kBytes), x[b] + c + 8,
                                   rest - 8, acc[r][b].high);
        }
      }
    }
  }
  for (int b = 0; b < kXRows; ++b) {
    for (int r = 0; r < kRows; ++r) out[b * row_stride + r] = FinalSum(acc[r][b]);
  }
}

template <typename Loader, int kRows, int kXRows>
void TileRows(const StoredRows& w, const float* const* x, int64_t begin, int64_t num_cols,
              float* out, int64_t row_stride) {
  const std::byte* data = w.data + begin * Loader::kBytes;
  int64_t r = 0;
  for (; r + kRows <= w.num_rows; r += kRows) {
    Tile<Loader, kRows, kXRows>(data + r * w.row_bytes, w.row_bytes, x, num_cols, out + r,
                                row_stride);
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
      for (; b + 3 <= x_rows.count; b += 3) {
        const float* three[3];
        for (int i = 0; i < 3; ++i) three[i] = x.data + x_rows[b + i] * x.row_stride + begin;
        TileRows<Loader, 2, 3>(rows, three, begin, num_cols, block_out + b * out.row_stride,
                               out.row_stride);
      }
      for (; b < x_rows.count; ++b) {
        const float* one = x.data + x_rows[b] * x.row_stride + begin;
        float* row_out = block_out + b * out.row_stride;
        if (num_cols <= kMaxSingleColumns) {
          TileRows<Loader, 1, 1>(rows, &one, begin, num_cols, row_out, out.row_stride);
        } else {
          TileRows<Loader, 4, 1>(rows, &one, begin, num_cols, row_out, out.row_stride);
        }
      }
    }
  }
}

// 32 values to int8 and the sums of four of them.
struct QuantizedGroup {
  __m256i quants;
  __m256i sums;
};

QuantizedGroup QuantizeGroup(const float* x, float inverse) {
  const __m256 factor = _mm256_set1_ps(inverse);
  __m256i q[4];
  for (int i = 0; i < 4; ++i) {
    q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), factor));
  }
  // The packs work in halves of 128 bits; the permutation restores the order of fours.
  const __m256i mixed =
      _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  const __m256i quants =
      _mm256_permutevar8x32_epi32(mixed, _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0));
  const __m256i sums =
      _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), quants), _mm256_set1_epi16(1));
  return {quants, sums};
}

float LargestMagnitude(const float* x) {
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < 32; i += 8) {
    const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(x + i));
    largest = _mm256_max_epu32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
  }
  __m128i four =
      _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(four));
}

}  // namespace

void DotF32Avx2(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                const Segments& segments, const DotOutput& out) {
  DotFloat<F32Loader>(w, x, x_rows, segments, out);
}
void DotF16Avx2(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                const Segments& segments, const DotOutput& out) {
  DotFloat<F16Loader>(w, x, x_rows, segments, out);
}
void DotBF16Avx2(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                 const Segments& segments, const DotOutput& out) {
  DotFloat<BF16Loader>(w, x, x_rows, segments, out);
}

void QuantizeRowAvx2(const float* values, const QuantizedRows& out, int64_t row) {
  const int64_t base = row * out.padded_cols;
  for (int64_t k = 0; k < out.padded_cols; k += kGroupLength) {
    const float* x = values + k;
    float padded[kGroupLength] = {};
    const int64_t rest = out.cols - k;
    if (rest < kGroupLength) {
      if (rest > 0) std::memcpy(padded, x, static_cast<size_t>(rest) * sizeof(float));
      x = padded;
    }
    float scale = LargestMagnitude(x) / 127.0f;
    QuantizedGroup group = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    if (scale < 0x1p-126f) {
      scale = 0;
    } else if (scale <= 3.402823466e38f) {
      group = QuantizeGroup(x, 1.0f / scale);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.quants + base + k), group.quants);
    out.scales[(base + k) / 32] = scale;
    const __m256i pairs = _mm256_hadd_epi32(group.sums, group.sums);
    const __m256i fours = _mm256_hadd_epi32(pairs, pairs);
    const int sum16[2] = {_mm256_extract_epi32(fours, 0), _mm256_extract_epi32(fours, 4)};
    for (int h = 0; h < 2; ++h) {
      out.half_offsets[(base + k) / 16 + h] = -128 * sum16[h];
      out.half_sums[(base + k) / 16 + h] = scale * static_cast<float>(sum16[h]);
    }
    out.group_sums[(base + k) / 32] = scale * static_cast<float>(sum16[0] + sum16[1]);
  }
}

}  // namespace switchyard::kernels::cpu
