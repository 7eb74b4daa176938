// What the files of the AVX2 level over row panels share. Private to them.
//
// Each 64-byte vector of a panel is two vectors here, for rows 0-7 and 8-15. Products of bytes are
// pairs summed in 16 bits (vpmaddubsw: unsigned by signed, saturating); as many of them are added
// there as cannot overflow, then the sums are widened to 32 bits (vpmaddwd).
//
// All names but the last two are in an unnamed namespace: nothing here may be merged with code of
// other levels.
#pragma once

#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <utility>

#include "kernels/cpu/panel_dot.h"

namespace switchyard::kernels::cpu {
namespace {  // NOLINT(google-build-namespaces): see above

#define SWITCHYARD_INLINE [[gnu::always_inline]] inline
#define SWITCHYARD_INLINE_LAMBDA __attribute__((always_inline))

constexpr int kHalves = 2;      // of the rows of a panel
constexpr int kHalfBytes = 32;  // of a vector of a panel, for a half
constexpr int kHalfRows = 8;    // lanes of a vector of floats

SWITCHYARD_INLINE __m256i Load(const void* bytes) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(bytes));
}

SWITCHYARD_INLINE void Store(__m256i value, void* bytes) {
  _mm256_storeu_si256(static_cast<__m256i*>(bytes), value);
}

// Four activations, for all eight rows.
SWITCHYARD_INLINE __m256i Broadcast4(const int8_t* quants) {
  int32_t four;
  std::memcpy(&four, quants, sizeof(four));
  return _mm256_set1_epi32(four);
}

// Calls f(integral_constant<int, 0>), ..., f(integral_constant<int, kCount - 1>).
template <int kCount, typename Function>
SWITCHYARD_INLINE void Unroll(Function&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) { (f(std::integral_constant<int, i>()), ...); }
  (std::make_integer_sequence<int, kCount>());
}

// Pointers into the selected activation rows, from column 0 on.
template <int kB>
struct RowPointers {
  const int8_t* quants[kB];
  const float* scales[kB];
  const int32_t* half_offsets[kB];
  const float* group_sums[kB];

  SWITCHYARD_INLINE RowPointers(const QuantizedRows& x, const RowSelection& rows, int64_t first) {
    for (int b = 0; b < kB; ++b) {
      const int64_t at = rows[first + b] * x.padded_cols;
      quants[b] = x.quants + at;
      scales[b] = x.scales + at / 32;
      half_offsets[b] = x.half_offsets + at / 16;
      group_sums[b] = x.group_sums + at / 32;
    }
  }
};

}  // namespace

// DotExpandedFunction.
void DotExpandedAvx2(const ExpandedPanel* panels, int64_t num_panels, const QuantizedRows& x,
                     const RowSelection& x_rows, const Segments& segments, const DotOutput& out);

// The same for a part of the columns: with `carry` the sums go on from those in `out`.
void DotExpandedPartAvx2(const ExpandedPanel* panels, int64_t num_panels, const QuantizedRows& x,
                         const RowSelection& x_rows, const Segments& segments, bool carry,
                         const DotOutput& out);

}  // namespace switchyard::kernels::cpu
