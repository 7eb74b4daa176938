// The AVX2 level: products over row panels.
//
// Each 64-byte vector of a panel is two vectors here, for rows 0-7 and 8-15. Products of bytes are
// pairs summed in 16 bits (vpmaddubsw: unsigned by signed, saturating); as many of them are added
// there as cannot overflow, then the sums are widened to 32 bits (vpmaddwd).
#include <cstdint>
#include <cstring>
#include <immintrin.h>
#include <utility>

#include "kernels/cpu/float_dot.h"
#include "kernels/cpu/panel_dot_levels.h"

namespace switchyard::kernels::cpu {
namespace {

#define SWITCHYARD_INLINE [[gnu::always_inline]] inline
#define SWITCHYARD_INLINE_LAMBDA __attribute__((always_inline))

constexpr int kHalves = 2;              // of the rows of a panel
constexpr int kHalfBytes = 32;          // of a vector of a panel, for a half
constexpr int kHalfRows = 8;            // lanes of a vector of floats
constexpr int kQuads = 8;               // of a group: vectors of four columns
constexpr int kMaxQuant = 127;          // largest magnitude of an activation
constexpr int kMaxPairSum = INT16_MAX;  // of what is added in 16 bits

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

// The calls f(integral_constant<int, 0>), ..., f(integral_constant<int, kCount - 1>).
template <int kCount, typename Function>
SWITCHYARD_INLINE void Unroll(Function&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) { (f(std::integral_constant<int, i>()), ...); }
  (std::make_integer_sequence<int, kCount>());
}

// ---- codes and factors ----------------------------------------------------------------------

// Codes of columns 4 t ... 4 t + 3 of a group, for eight rows: byte 4 r + i is column 4 t + i of
// row r. `quants` is the group's plus 32 bytes for rows 8-15.
template <int kBits, int t>
SWITCHYARD_INLINE __m256i Codes(const uint8_t* quants) {
  if constexpr (kBits == 8) return Load(quants + 64 * t);
  __m256i codes = Load(quants + 64 * (t / 2));
  if constexpr (t % 2 == 1) codes = _mm256_srli_epi16(codes, 4);
  codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
  if constexpr (kBits == 5) {
    __m256i fifth = Load(quants + 64 * 4);
    if constexpr (t < 4) fifth = _mm256_slli_epi16(fifth, 4 - t);
    if constexpr (t > 4) fifth = _mm256_srli_epi16(fifth, t - 4);
    codes = _mm256_or_si256(codes, _mm256_and_si256(fifth, _mm256_set1_epi8(0x10)));
  }
  if constexpr (kBits == 6) {
    constexpr int u = t % 4;
    __m256i high = Load(quants + 64 * (4 + t / 4));
    if constexpr (u < 2) high = _mm256_slli_epi16(high, 4 - 2 * u);
    if constexpr (u == 3) high = _mm256_srli_epi16(high, 2);
    codes = _mm256_or_si256(codes, _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
  }
  return codes;
}

// A table of 16 bytes with `added` added to each, for vpshufb.
template <PanelFormat kFormat>
SWITCHYARD_INLINE __m256i Table(int added) {
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(&kFormat.table));
  return _mm256_broadcastsi128_si256(_mm_add_epi8(table, _mm_set1_epi8(static_cast<char>(added))));
}

SWITCHYARD_INLINE __m256 HalvesToFloats(const uint8_t* halves) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
}

template <bool kSigned>
SWITCHYARD_INLINE __m256 BytesToFloats(const uint8_t* bytes) {
  const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  return _mm256_cvtepi32_ps(kSigned ? _mm256_cvtepi8_epi32(eight) : _mm256_cvtepu8_epi32(eight));
}

// The halves that a group shares with its block, or has alone: factor * d, and dmin.
template <PanelFormat kFormat>
struct BlockFactors {
  __m256 d[kHalves];
  __m256 dmin[kHalves];

  SWITCHYARD_INLINE void Read(const uint8_t* factors) {
    for (int h = 0; h < kHalves; ++h) {
      d[h] = HalvesToFloats(factors + 16 * h);
      if constexpr (kFormat.factor != 1.0f) {
        d[h] = _mm256_mul_ps(d[h], _mm256_set1_ps(kFormat.factor));
      }
      if constexpr (kFormat.has_minimum) dmin[h] = HalvesToFloats(factors + 32 + 16 * h);
    }
  }

  // W of a run of the group whose 8-bit factors are at `bytes` (with blocks).
  SWITCHYARD_INLINE __m256 Scale(const uint8_t* bytes, int run, int h) const {
    if constexpr (!kFormat.has_blocks) return d[h];
    return _mm256_mul_ps(
        d[h], BytesToFloats<kFormat.signed_scales>(bytes + kPanelRows * run + kHalfRows * h));
  }

  // M of the group.
  SWITCHYARD_INLINE __m256 Minimum(const uint8_t* bytes, int h) const {
    if constexpr (!kFormat.has_blocks) return dmin[h];
    constexpr int kRuns = kPanelGroup / kFormat.run_length;
    const __m256 product =
        _mm256_mul_ps(dmin[h], BytesToFloats<false>(bytes + kPanelRows * kRuns + kHalfRows * h));
    return _mm256_xor_ps(product, _mm256_set1_ps(-0.0f));
  }
};

// Walks the groups of columns [begin, end) of a panel:
//   visit(block factors, 8-bit factors of the group, quants of the group, column).
template <PanelFormat kFormat, typename Visit>
SWITCHYARD_INLINE void VisitGroups(const std::byte* panel, int64_t cols, int64_t begin, int64_t end,
                                   Visit&& visit) {
  const auto* factors = reinterpret_cast<const uint8_t*>(panel);
  const uint8_t* quants = factors + kFormat.quants_begin(cols);
  constexpr int64_t kLength = kFormat.has_blocks ? kPanelBlock : kPanelGroup;
  constexpr int64_t kBlockHalvesBytes = (kFormat.has_minimum ? 2 : 1) * kPanelRows * 2;
  for (int64_t col = begin; col < end;) {
    const int64_t block = col / kLength;
    const int64_t block_end = end < (block + 1) * kLength ? end : (block + 1) * kLength;
    const uint8_t* block_factors = factors + block * kFormat.factor_bytes();
    BlockFactors<kFormat> halves;
    halves.Read(block_factors);
    for (; col < block_end; col += kPanelGroup) {
      const int64_t g = col % kLength / kPanelGroup;
      visit(halves, block_factors + kBlockHalvesBytes + g * kFormat.group_factor_bytes(),
            quants + col / kPanelGroup * kFormat.group_quant_bytes(), col);
    }
  }
}

// ---- up to eight activation rows, packed weights -----------------------------------------------

// How weights become the operands of vpmaddubsw.
enum class Operands {
  kCodes,           // codes by activations; what the codes have too much is in the offset
  kWeightSign,      // |w| by activations with the sign of w
  kActivationSign,  // |activation| by weights with the activation's sign. Weights are >= -127.
};

// With one activation row its magnitudes are made once for all rows of the panel; with more, those
// of the weights once for all activations.
template <PanelFormat kFormat, int kB>
constexpr Operands kOperands =
    kFormat.code != PanelCode::kTable&& kFormat.bits < 8 ? Operands::kCodes
    : kFormat.code == PanelCode::kTable&& kB == 1        ? Operands::kActivationSign
                                                         : Operands::kWeightSign;

// Largest magnitude of the operand that comes from the weights.
template <PanelFormat kFormat>
constexpr int MaxOperand() {
  if (kFormat.bits == 8) return 128;
  if (kFormat.code != PanelCode::kTable) return (1 << kFormat.bits) - 1;
  int largest = 0;
  for (const int value : kFormat.table) {
    const int magnitude = value < 0 ? -value : value;
    if (magnitude > largest) largest = magnitude;
  }
  return largest;
}

// Pair sums that may be added in 16 bits, at most those of a run.
template <PanelFormat kFormat>
constexpr int NumAdded() {
  const int num = kMaxPairSum / (2 * MaxOperand<kFormat>() * kMaxQuant);
  const int quads = kFormat.run_length / 4;
  return num >= quads ? quads : num >= 4 ? 4 : num >= 2 ? 2 : 1;
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

// What the integer sum of a run must have added to be that of the weights, without the factor 2 of
// kOdd: codes have `offset` too much, which is a power of two.
template <PanelFormat kFormat>
SWITCHYARD_INLINE int32_t RunOffset(const int32_t* half_offsets, int run) {
  const int32_t offset =
      kFormat.run_length == 16 ? half_offsets[run] : half_offsets[0] + half_offsets[1];
  if constexpr (kFormat.code == PanelCode::kOdd) return (offset >> 7) * 15;
  return (offset >> 7) * kFormat.offset;
}

// Integer sums of a run, for kH halves of the rows and kB activation rows.
//
// Shapes: quants as in Codes(), for the first half; x [kB] and x_magnitudes, the activations of the
//         group.
template <PanelFormat kFormat, int kH, int kB, int kRun>
SWITCHYARD_INLINE void RunSums(const uint8_t* quants, const int8_t* const (&x)[kB],
                               const int8_t* x_magnitudes, __m256i (&sums)[kH][kB]) {
  constexpr Operands kForm = kOperands<kFormat, kB>;
  constexpr int kAdded = NumAdded<kFormat>();
  constexpr int kRunQuads = kFormat.run_length / 4;
  const __m256i widen = _mm256_set1_epi16(kFormat.code == PanelCode::kOdd ? 2 : 1);
  Unroll<kRunQuads / kAdded>([&](auto chunk) {
    __m256i pairs[kH][kB];
    Unroll<kAdded>([&](auto i) {
      constexpr int t = kRun * kRunQuads + chunk * kAdded + i;
      __m256i w[kH];
      for (int h = 0; h < kH; ++h) {
        w[h] = Codes<kFormat.bits, t>(quants + kHalfBytes * h);
        if constexpr (kFormat.code == PanelCode::kTable) {
          w[h] = _mm256_shuffle_epi8(Table<kFormat>(0), w[h]);
        } else if constexpr (kFormat.bits == 8) {
          w[h] = _mm256_xor_si256(w[h], _mm256_set1_epi8(-128));
        }
      }
      for (int b = 0; b < kB; ++b) {
        const __m256i activations = Broadcast4(x[b] + 4 * t);
        for (int h = 0; h < kH; ++h) {
          __m256i products;
          if constexpr (kForm == Operands::kCodes) {
            products = _mm256_maddubs_epi16(w[h], activations);
          } else if constexpr (kForm == Operands::kWeightSign) {
            products =
                _mm256_maddubs_epi16(_mm256_abs_epi8(w[h]), _mm256_sign_epi8(activations, w[h]));
          } else {
            products = _mm256_maddubs_epi16(Broadcast4(x_magnitudes + 4 * t),
                                            _mm256_sign_epi8(w[h], activations));
          }
          pairs[h][b] = i == 0 ? products : _mm256_add_epi16(pairs[h][b], products);
        }
      }
    });
    for (int h = 0; h < kH; ++h) {
      for (int b = 0; b < kB; ++b) {
        const __m256i wide = _mm256_madd_epi16(pairs[h][b], widen);
        sums[h][b] = chunk == 0 ? wide : _mm256_add_epi32(sums[h][b], wide);
      }
    }
  });
}

// Adds the runs of a group to the sums of kH halves, from half `first` on.
template <PanelFormat kFormat, int kH, int kB>
SWITCHYARD_INLINE void AddGroup(const BlockFactors<kFormat>& block, const uint8_t* factors,
                                const uint8_t* quants, const RowPointers<kB>& x, int64_t col,
                                const int8_t* x_magnitudes, int first, __m256 (*acc)[kB]) {
  constexpr bool kHasOffset = kOperands<kFormat, kB> == Operands::kCodes &&
                              (kFormat.code == PanelCode::kOdd || kFormat.offset != 0);
  const int8_t* group_x[kB];
  for (int b = 0; b < kB; ++b) group_x[b] = x.quants[b] + col;
  Unroll<kPanelGroup / kFormat.run_length>([&](auto run) {
    __m256i sums[kH][kB];
    RunSums<kFormat, kH, kB, run>(quants + kHalfBytes * first, group_x, x_magnitudes, sums);
    for (int b = 0; b < kB; ++b) {
      const __m256 x_scale = _mm256_broadcast_ss(x.scales[b] + col / 32);
      for (int h = 0; h < kH; ++h) {
        if constexpr (kHasOffset) {
          const int32_t offset = RunOffset<kFormat>(x.half_offsets[b] + col / 16, run);
          sums[h][b] = _mm256_add_epi32(sums[h][b], _mm256_set1_epi32(offset));
        }
        __m256& lanes = acc[first + h][b];
        lanes =
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[h][b]),
                            _mm256_mul_ps(block.Scale(factors, run, first + h), x_scale), lanes);
        if constexpr (kFormat.has_minimum) {
          static_assert(kFormat.run_length == kPanelGroup);
          lanes = _mm256_fmadd_ps(block.Minimum(factors, first + h),
                                  _mm256_broadcast_ss(x.group_sums[b] + col / 32), lanes);
        }
      }
    }
  });
}

// Results of kB activation rows and one panel over one segment. Up to two activation rows fit the
// registers with both halves of the panel's rows; more take one half of a group after the other.
template <PanelFormat kFormat, int kB>
SWITCHYARD_INLINE void DotPanel(const std::byte* panel, int64_t cols, const RowPointers<kB>& x,
                                int64_t begin, int64_t end, float* out, int64_t row_stride) {
  __m256 acc[kHalves][kB];
  for (auto& half : acc) {
    for (__m256& lanes : half) lanes = _mm256_setzero_ps();
  }
  VisitGroups<kFormat>(
      panel, cols, begin, end,
      [&](const BlockFactors<kFormat>& block, const uint8_t* factors, const uint8_t* quants,
          int64_t col) SWITCHYARD_INLINE_LAMBDA {
        if constexpr (kOperands<kFormat, kB> == Operands::kActivationSign) {
          alignas(32) int8_t magnitudes[kPanelGroup];
          Store(_mm256_abs_epi8(Load(x.quants[0] + col)), magnitudes);
          AddGroup<kFormat, kHalves, kB>(block, factors, quants, x, col, magnitudes, 0, acc);
        } else if constexpr (kB <= 2) {
          AddGroup<kFormat, kHalves, kB>(block, factors, quants, x, col, nullptr, 0, acc);
        } else {
#pragma GCC unroll 1
          for (int h = 0; h < kHalves; ++h) {
            AddGroup<kFormat, 1, kB>(block, factors, quants, x, col, nullptr, h, acc);
          }
        }
      });
  for (int b = 0; b < kB; ++b) {
    for (int h = 0; h < kHalves; ++h) {
      _mm256_storeu_ps(out + b * row_stride + kHalfRows * h, acc[h][b]);
    }
  }
}

template <PanelFormat kFormat, int kB>
void DotPanelRows(const std::byte* panel, int64_t cols, const QuantizedRows& x,
                  const RowSelection& x_rows, int64_t first, const Segments& segments,
                  const DotOutput& out) {
  const RowPointers<kB> pointers(x, x_rows, first);
  for (int s = 0; s < segments.num_segments; ++s) {
    DotPanel<kFormat, kB>(panel, cols, pointers, segments.border[s], segments.border[s + 1],
                          out.data + s * out.segment_stride + first * out.row_stride,
                          out.row_stride);
  }
}

template <DType dtype>
void DotPanels(const Panels& w, const QuantizedRows& x, const RowSelection& x_rows,
               const Segments& segments, const DotOutput& out) {
  constexpr PanelFormat kFormat = kPanelFormat<dtype>;
  for (int64_t p = 0; p < w.num_panels; ++p) {
    const std::byte* panel = w.data + p * w.panel_bytes;
    const DotOutput panel_out = {out.data + p * kPanelRows, out.row_stride, out.segment_stride};
    int64_t b = 0;
    for (; b + 4 <= x_rows.count; b += 4) {
      DotPanelRows<kFormat, 4>(panel, w.cols, x, x_rows, b, segments, panel_out);
    }
    if (b + 2 <= x_rows.count) {
      DotPanelRows<kFormat, 2>(panel, w.cols, x, x_rows, b, segments, panel_out);
      b += 2;
    }
    if (b < x_rows.count) {
      DotPanelRows<kFormat, 1>(panel, w.cols, x, x_rows, b, segments, panel_out);
    }
  }
}

// ---- expansion ----------------------------------------------------------------------------------

template <DType dtype>
void ExpandPanel(const std::byte* panel, int64_t cols, const ExpandedPanel& out) {
  constexpr PanelFormat kFormat = kPanelFormat<dtype>;
  uint8_t* values = out.values;
  float* scales = out.scales;
  float* minima = out.minima;
  VisitGroups<kFormat>(
      panel, cols, out.begin, out.begin + out.cols,
      [&](const BlockFactors<kFormat>& block, const uint8_t* factors, const uint8_t* quants,
          int64_t) SWITCHYARD_INLINE_LAMBDA {
        for (int h = 0; h < kHalves; ++h) {
          Unroll<kQuads>([&](auto t) {
            __m256i w = Codes<kFormat.bits, t>(quants + kHalfBytes * h);
            if constexpr (kFormat.code == PanelCode::kTable) {
              w = _mm256_shuffle_epi8(Table<kFormat>(128), w);
            } else if constexpr (kFormat.code == PanelCode::kOdd) {
              w = _mm256_add_epi8(_mm256_add_epi8(w, w), _mm256_set1_epi8(128 - 15));
            } else if constexpr (kFormat.bits < 8) {
              w = _mm256_add_epi8(w, _mm256_set1_epi8(static_cast<char>(128 - kFormat.offset)));
            }
            Store(w, values + 64 * t + kHalfBytes * h);
          });
          Unroll<kPanelGroup / kFormat.run_length>([&](auto run) {
            _mm256_storeu_ps(scales + kPanelRows * run + kHalfRows * h,
                             block.Scale(factors, run, h));
          });
          if constexpr (kFormat.has_minimum) {
            _mm256_storeu_ps(minima + kHalfRows * h, block.Minimum(factors, h));
          }
        }
        values += kPanelRows * kPanelGroup;
        scales += kPanelRows * kPanelGroup / kFormat.run_length;
        if constexpr (kFormat.has_minimum) minima += kPanelRows;
      });
}

// ---- expanded weights, any number of activation rows --------------------------------------------

// One half of an expanded panel's rows by kB activation rows over columns [begin, end). The weights
// of four columns are made once for all activation rows. With a minimum they are at most 63, so
// that two pair sums fit 16 bits (2 * 2 * 63 * 127); without, they are any bytes.
template <bool kHasMinimum, int kRunLength, int kB>
SWITCHYARD_INLINE void DotHalf(const ExpandedPanel& w, int h, const RowPointers<kB>& x,
                               const float* const (&x_sums)[kB], int64_t begin, int64_t end,
                               float* out, int64_t row_stride) {
  constexpr int kRunQuads = kRunLength / 4;
  constexpr int kAdded = kHasMinimum ? 2 : 1;
  const int64_t first_factor = (begin - w.begin) / kRunLength * kPanelRows + kHalfRows * h;
  const uint8_t* values = w.values + (begin - w.begin) * kPanelRows + kHalfBytes * h;
  const float* scales = w.scales + first_factor;
  const float* minima = kHasMinimum ? w.minima + first_factor : nullptr;
  alignas(32) float acc[kB][kHalfRows] = {};  // the registers are for the integer sums
  for (int64_t run = begin; run < end; run += kRunLength) {
    __m256i sums[kB];
    Unroll<kRunQuads / kAdded>([&](auto chunk) {
      __m256i pairs[kB];
      Unroll<kAdded>([&](auto i) {
        constexpr int t = chunk * kAdded + i;
        const __m256i weights = _mm256_xor_si256(Load(values + 64 * t), _mm256_set1_epi8(-128));
        for (int b = 0; b < kB; ++b) {
          const __m256i activations = Broadcast4(x.quants[b] + run + 4 * t);
          __m256i products;
          if constexpr (kHasMinimum) {
            products = _mm256_maddubs_epi16(weights, activations);
          } else {
            products = _mm256_maddubs_epi16(_mm256_abs_epi8(weights),
                                            _mm256_sign_epi8(activations, weights));
          }
          pairs[b] = i == 0 ? products : _mm256_add_epi16(pairs[b], products);
        }
      });
      for (int b = 0; b < kB; ++b) {
        const __m256i wide = _mm256_madd_epi16(pairs[b], _mm256_set1_epi16(1));
        sums[b] = chunk == 0 ? wide : _mm256_add_epi32(sums[b], wide);
      }
    });
    const __m256 scale = _mm256_loadu_ps(scales);
    for (int b = 0; b < kB; ++b) {
      const __m256 factor = _mm256_mul_ps(scale, _mm256_broadcast_ss(x.scales[b] + run / 32));
      __m256 lanes = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[b]), factor, _mm256_load_ps(acc[b]));
      if constexpr (kHasMinimum) {
        lanes = _mm256_fmadd_ps(_mm256_loadu_ps(minima),
                                _mm256_broadcast_ss(x_sums[b] + run / kRunLength), lanes);
      }
      _mm256_store_ps(acc[b], lanes);
    }
    values += kRunLength * kPanelRows;
    scales += kPanelRows;
    if constexpr (kHasMinimum) minima += kPanelRows;
  }
  for (int b = 0; b < kB; ++b) _mm256_storeu_ps(out + b * row_stride, _mm256_load_ps(acc[b]));
}

template <bool kHasMinimum, int kRunLength, int kB>
void DotExpandedRows(const ExpandedPanel* panels, int64_t num_panels, const QuantizedRows& x,
                     const RowSelection& x_rows, int64_t first, int64_t begin, int64_t end,
                     float* out, int64_t row_stride) {
  const RowPointers<kB> pointers(x, x_rows, first);
  const float* x_sums[kB];
  for (int b = 0; b < kB; ++b) {
    const int64_t at = x_rows[first + b] * x.padded_cols / kRunLength;
    x_sums[b] = (kRunLength == 16 ? x.half_sums : x.group_sums) + at;
  }
  for (int64_t p = 0; p < num_panels; ++p) {
    for (int h = 0; h < kHalves; ++h) {
      DotHalf<kHasMinimum, kRunLength, kB>(panels[p], h, pointers, x_sums, begin, end,
                                           out + kPanelRows * p + kHalfRows * h, row_stride);
    }
  }
}

// Activation rows outside, so that those of a tile stay in the first-level cache while the expanded
// panels come from the second.
template <bool kHasMinimum, int kRunLength>
void DotExpandedAs(const ExpandedPanel* panels, int64_t num_panels, const QuantizedRows& x,
                   const RowSelection& x_rows, const Segments& segments, const DotOutput& out) {
  for (int s = 0; s < segments.num_segments; ++s) {
    const int64_t begin = segments.border[s];
    const int64_t end = segments.border[s + 1];
    const auto rows = [&](auto count, int64_t first) {
      DotExpandedRows<kHasMinimum, kRunLength, count>(
          panels, num_panels, x, x_rows, first, begin, end,
          out.data + s * out.segment_stride + first * out.row_stride, out.row_stride);
    };
    int64_t b = 0;
    for (; b + 8 <= x_rows.count; b += 8) rows(std::integral_constant<int, 8>(), b);
    for (; b + 4 <= x_rows.count; b += 4) rows(std::integral_constant<int, 4>(), b);
    for (; b + 2 <= x_rows.count; b += 2) rows(std::integral_constant<int, 2>(), b);
    if (b < x_rows.count) rows(std::integral_constant<int, 1>(), b);
  }
}

void DotExpanded(const ExpandedPanel* panels, int64_t num_panels, const QuantizedRows& x,
                 const RowSelection& x_rows, const Segments& segments, const DotOutput& out) {
  if (num_panels == 0) return;
  const bool has_minimum = panels[0].has_minimum;
  const auto dot = panels[0].run_length == 32
                       ? (has_minimum ? DotExpandedAs<true, 32> : DotExpandedAs<false, 32>)
                       : (has_minimum ? DotExpandedAs<true, 16> : DotExpandedAs<false, 16>);
  dot(panels, num_panels, x, x_rows, segments, out);
}

template <DType dtype>
constexpr FormatFunctions kFunctions = {DotPanels<dtype>, ExpandPanel<dtype>, nullptr};

FormatFunctions Format(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return kFunctions<DType::kQ4_0>;
    case DType::kQ4_1:
      return kFunctions<DType::kQ4_1>;
    case DType::kQ5_0:
      return kFunctions<DType::kQ5_0>;
    case DType::kQ5_1:
      return kFunctions<DType::kQ5_1>;
    case DType::kQ8_0:
      return kFunctions<DType::kQ8_0>;
    case DType::kQ4_K:
      return kFunctions<DType::kQ4_K>;
    case DType::kQ5_K:
      return kFunctions<DType::kQ5_K>;
    case DType::kQ6_K:
      return kFunctions<DType::kQ6_K>;
    case DType::kIQ4_NL:
      return kFunctions<DType::kIQ4_NL>;
    case DType::kIQ4_XS:
      return kFunctions<DType::kIQ4_XS>;
    case DType::kIQ3_S:
      return kFunctions<DType::kIQ3_S>;
    case DType::kIQ3_XXS:
      return kFunctions<DType::kIQ3_XXS>;
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

const LevelFunctions kAvx2Panels = {Format, DotExpanded, QuantizeRowAvx2};

}  // namespace switchyard::kernels::cpu
