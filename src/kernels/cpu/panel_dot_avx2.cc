// The AVX2 level: products over packed panels, and their expansion.
#include "kernels/cpu/panel_dot_avx2.h"

#include <cstdint>
#include <immintrin.h>
#include <utility>

#include "kernels/cpu/float_dot.h"
#include "kernels/cpu/panel_dot.h"

namespace switchyard::kernels::cpu {
namespace {

constexpr int kQuads = 8;               // of a group: vectors of four columns
constexpr int kMaxQuant = 127;          // largest magnitude of an activation
constexpr int kMaxPairSum = INT16_MAX;  // of what is added in 16 bits

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

// How far ahead of the quants to fetch: what a core must have under way to read at full speed, more
// than 30 GB/s times 200 ns. The hardware by itself reaches half of that speed.
constexpr int64_t kPrefetchBytes = 8192;

// Fetches a group's share of the bytes ahead, those of the next panel's factors among them.
template <PanelFormat kFormat>
SWITCHYARD_INLINE void PrefetchGroup(const uint8_t* quants, int64_t group) {
  constexpr int64_t kFactorBytes =
      kFormat.factor_bytes() / (kFormat.has_blocks ? kPanelBlock / kPanelGroup : 1);
  constexpr int64_t kBytes = kFormat.group_quant_bytes() + kFactorBytes;
  const uint8_t* ahead = quants + kPrefetchBytes + group * kBytes;
  for (int64_t i = 0; i < kBytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead + i), _MM_HINT_T0);
  }
}

// Walks groups [first, last) of a panel's columns:
//   visit(block factors, 8-bit factors of the group, quants of the group, group).
template <PanelFormat kFormat, typename Visit>
SWITCHYARD_INLINE void VisitGroups(const std::byte* panel, int64_t cols, int64_t first,
                                   int64_t last, Visit&& visit) {
  constexpr int64_t kGroups = kFormat.has_blocks ? kPanelBlock / kPanelGroup : 1;
  constexpr int64_t kBlockHalvesBytes = (kFormat.has_minimum ? 2 : 1) * kPanelRows * 2;
  const auto* factors = reinterpret_cast<const uint8_t*>(panel);
  const uint8_t* quants = factors + kFormat.quants_begin(cols);
  for (int64_t group = first; group < last;) {
    const int64_t block = group / kGroups;
    const int64_t next_block = (block + 1) * kGroups;
    const int64_t end = last < next_block ? last : next_block;
    const uint8_t* block_factors = factors + block * kFormat.factor_bytes();
    const uint8_t* group_factors = block_factors + kBlockHalvesBytes +
                                   (group - block * kGroups) * kFormat.group_factor_bytes();
    BlockFactors<kFormat> halves;
    halves.Read(block_factors);
    for (; group < end; ++group, group_factors += kFormat.group_factor_bytes()) {
      PrefetchGroup<kFormat>(quants, group);
      visit(halves, group_factors, quants + group * kFormat.group_quant_bytes(), group);
    }
  }
}

// ---- decoding in registers ----------------------------------------------------------------------

// How weights become the operands of vpmaddubsw.
enum class Operands {
  kCodes,           // codes by activations; what the codes have too much is in the offset
  kWeightSign,      // |w| by activations with the sign of w
  kActivationSign,  // |activation| by weights with the activation's sign. Weights are >= -127.
};

// With one activation row its magnitudes are made once for all rows of the panel; with more, those
// of the weights once for all activations.
template <PanelFormat kFormat, int kB>
constexpr Operands OperandsOf() {
  if (kFormat.code == PanelCode::kTable) {
    return kB == 1 ? Operands::kActivationSign : Operands::kWeightSign;
  }
  return kFormat.bits == 8 ? Operands::kWeightSign : Operands::kCodes;
}

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

// What the integer sum of a run must have added to be that of the weights, without the factor 2 of
// kOdd: codes have `offset` too much, which is a power of two.
template <PanelFormat kFormat>
SWITCHYARD_INLINE int32_t RunOffset(const int32_t* half_offsets, int run) {
  const int32_t offset =
      kFormat.run_length == 16 ? half_offsets[run] : half_offsets[0] + half_offsets[1];
  if constexpr (kFormat.code == PanelCode::kOdd) return (offset >> 7) * 15;
  return (offset >> 7) * kFormat.offset;
}

// Integer sums of a run, for kH halves of the rows and kB activation rows. Where a run needs
// several sums in 32 bits, each activation row's are added before the next row's, to keep few
// alive.
//
// Shapes: quants as in Codes(), for the first half; x [kB] and x_magnitudes, the activations of the
//         group.
template <PanelFormat kFormat, int kH, int kB, int kRun>
SWITCHYARD_INLINE void RunSums(const uint8_t* quants, const int8_t* const (&x)[kB],
                               const int8_t* x_magnitudes, __m256i (&sums)[kH][kB]) {
  constexpr Operands kForm = OperandsOf<kFormat, kB>();
  constexpr int kAdded = NumAdded<kFormat>();
  constexpr int kRunQuads = kFormat.run_length / 4;
  const __m256i widen = _mm256_set1_epi16(kFormat.code == PanelCode::kOdd ? 2 : 1);
  const auto weights = [&]<int t>(std::integral_constant<int, t>, int h) SWITCHYARD_INLINE_LAMBDA {
    const __m256i w = Codes<kFormat.bits, t>(quants + kHalfBytes * h);
    if constexpr (kFormat.code == PanelCode::kTable) {
      return _mm256_shuffle_epi8(Table<kFormat>(0), w);
    } else if constexpr (kFormat.bits == 8) {
      return _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    } else {
      return w;
    }
  };
  const auto products = [&](__m256i w, int b, int t) SWITCHYARD_INLINE_LAMBDA {
    const __m256i activations = Broadcast4(x[b] + 4 * t);
    if constexpr (kForm == Operands::kCodes) {
      return _mm256_maddubs_epi16(w, activations);
    } else if constexpr (kForm == Operands::kWeightSign) {
      return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(activations, w));
    } else {
      return _mm256_maddubs_epi16(Broadcast4(x_magnitudes + 4 * t),
                                  _mm256_sign_epi8(w, activations));
    }
  };
  Unroll<kRunQuads / kAdded>([&](auto chunk) SWITCHYARD_INLINE_LAMBDA {
    constexpr int kFirst = kRun * kRunQuads + chunk * kAdded;
    const auto add_wide = [&](__m256i pairs, int h, int b) SWITCHYARD_INLINE_LAMBDA {
      const __m256i wide = _mm256_madd_epi16(pairs, widen);
      sums[h][b] = chunk == 0 ? wide : _mm256_add_epi32(sums[h][b], wide);
    };
    if constexpr (kB == 1 || kAdded == kRunQuads) {
      __m256i pairs[kH][kB];
      Unroll<kAdded>([&](auto i) SWITCHYARD_INLINE_LAMBDA {
        for (int h = 0; h < kH; ++h) {
          const __m256i w = weights(std::integral_constant<int, kFirst + i>(), h);
          for (int b = 0; b < kB; ++b) {
            const __m256i pair = products(w, b, kFirst + i);
            pairs[h][b] = i == 0 ? pair : _mm256_add_epi16(pairs[h][b], pair);
          }
        }
      });
      for (int h = 0; h < kH; ++h) {
        for (int b = 0; b < kB; ++b) add_wide(pairs[h][b], h, b);
      }
    } else {
      for (int h = 0; h < kH; ++h) {
        __m256i w[kAdded];
        Unroll<kAdded>([&](auto i) SWITCHYARD_INLINE_LAMBDA {
          w[i] = weights(std::integral_constant<int, kFirst + i>(), h);
        });
        for (int b = 0; b < kB; ++b) {
          __m256i pairs = products(w[0], b, kFirst);
          for (int i = 1; i < kAdded; ++i) {
            pairs = _mm256_add_epi16(pairs, products(w[i], b, kFirst + i));
          }
          add_wide(pairs, h, b);
        }
      }
    }
  });
}

// Adds the runs of a group to the sums of kH halves, from half `first` on.
template <PanelFormat kFormat, int kH, int kB>
SWITCHYARD_INLINE void AddGroup(const BlockFactors<kFormat>& block, const uint8_t* factors,
                                const uint8_t* quants, const RowPointers<kB>& x, int64_t group,
                                const int8_t* x_magnitudes, int first, __m256 (*acc)[kB]) {
  constexpr bool kHasOffset = OperandsOf<kFormat, kB>() == Operands::kCodes &&
                              (kFormat.code == PanelCode::kOdd || kFormat.offset != 0);
  const int8_t* group_x[kB];
  for (int b = 0; b < kB; ++b) group_x[b] = x.quants[b] + kPanelGroup * group;
  Unroll<kPanelGroup / kFormat.run_length>([&](auto run) {
    __m256i sums[kH][kB];
    RunSums<kFormat, kH, kB, run>(quants + kHalfBytes * first, group_x, x_magnitudes, sums);
    for (int b = 0; b < kB; ++b) {
      const __m256 x_scale = _mm256_broadcast_ss(x.scales[b] + group);
      for (int h = 0; h < kH; ++h) {
        if constexpr (kHasOffset) {
          const int32_t offset = RunOffset<kFormat>(x.half_offsets[b] + 2 * group, run);
          sums[h][b] = _mm256_add_epi32(sums[h][b], _mm256_set1_epi32(offset));
        }
        __m256& lanes = acc[first + h][b];
        lanes =
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[h][b]),
                            _mm256_mul_ps(block.Scale(factors, run, first + h), x_scale), lanes);
        if constexpr (kFormat.has_minimum) {
          static_assert(kFormat.run_length == kPanelGroup);
          lanes = _mm256_fmadd_ps(block.Minimum(factors, first + h),
                                  _mm256_broadcast_ss(x.group_sums[b] + group), lanes);
        }
      }
    }
  });
}

// Whether the registers hold the integer sums of kB activation rows and both halves of the panel's
// rows: for up to two, and where no sum of a run is widened before its last.
template <PanelFormat kFormat, int kB>
constexpr bool TakesBothHalves() {
  return kB <= 2 || NumAdded<kFormat>() == kFormat.run_length / 4;
}

// Results of kB activation rows and one panel over one segment.
template <PanelFormat kFormat, int kB>
SWITCHYARD_INLINE void DotPanel(const std::byte* panel, int64_t cols, const RowPointers<kB>& x,
                                int64_t begin, int64_t end, float* out, int64_t row_stride) {
  __m256 acc[kHalves][kB];
  for (auto& half : acc) {
    for (__m256& lanes : half) lanes = _mm256_setzero_ps();
  }
  VisitGroups<kFormat>(
      panel, cols, begin / kPanelGroup, end / kPanelGroup,
      [&](const BlockFactors<kFormat>& block, const uint8_t* factors, const uint8_t* quants,
          int64_t group) SWITCHYARD_INLINE_LAMBDA {
        if constexpr (OperandsOf<kFormat, kB>() == Operands::kActivationSign) {
          alignas(32) int8_t magnitudes[kPanelGroup];
          Store(_mm256_abs_epi8(Load(x.quants[0] + kPanelGroup * group)), magnitudes);
          // Unseen by the compiler, which would rather shuffle the vector than load from memory.
          const int8_t* hidden = magnitudes;
          asm volatile("" : "+r"(hidden) : : "memory");
          AddGroup<kFormat, kHalves, kB>(block, factors, quants, x, group, hidden, 0, acc);
        } else if constexpr (TakesBothHalves<kFormat, kB>()) {
          AddGroup<kFormat, kHalves, kB>(block, factors, quants, x, group, nullptr, 0, acc);
        } else {
#pragma GCC unroll 1
          for (int h = 0; h < kHalves; ++h) {
            asm volatile(""
                         : "+r"(group));  // else the first half's activations are kept, in memory
            AddGroup<kFormat, 1, kB>(block, factors, quants, x, group, nullptr, h, acc);
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
void DotPackedPanels(const Panels& w, const QuantizedRows& x, const RowSelection& x_rows,
                     const Segments& segments, const DotOutput& out) {
  constexpr PanelFormat kFormat = kPanelFormat<dtype>;
  for (int64_t p = 0; p < w.num_panels; ++p) {
    const std::byte* panel = w.data + p * w.panel_bytes;
    const DotOutput panel_out = {out.data + p * kPanelRows, out.row_stride, out.segment_stride};
    int64_t b = 0;
    for (; b + 4 <= x_rows.count; b += 4) {
      DotPanelRows<kFormat, 4>(panel, w.cols, x, x_rows, b, segments, panel_out);
    }
    switch (x_rows.count - b) {
      case 3:
        DotPanelRows<kFormat, 3>(panel, w.cols, x, x_rows, b, segments, panel_out);
        break;
      case 2:
        DotPanelRows<kFormat, 2>(panel, w.cols, x, x_rows, b, segments, panel_out);
        break;
      case 1:
        DotPanelRows<kFormat, 1>(panel, w.cols, x, x_rows, b, segments, panel_out);
        break;
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
      panel, cols, out.begin / kPanelGroup, (out.begin + out.cols) / kPanelGroup,
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

// ---- packed weights, any number of activation rows ----------------------------------------------

// Columns that are expanded at a time: with the activations of a tile they stay in the first-level
// cache.
constexpr int64_t kSliceColumns = 512;

// Whether decoding anew for each four activation rows is as fast as expanding, for any number of
// them: where it takes few instructions, or expanded weights take as many.
template <PanelFormat kFormat>
constexpr bool IsDecodedAnew() {
  return kFormat.bits == 8 || (kFormat.bits == 4 && kFormat.code != PanelCode::kTable);
}

// Activation rows from which on the other formats are expanded.
constexpr int64_t kMinSliceRows = 9;

// Expands a slice of the columns and multiplies it with all activation rows, then the next slice.
template <DType dtype>
void DotSlices(const Panels& w, const QuantizedRows& x, const RowSelection& x_rows,
               const Segments& segments, const DotOutput& out) {
  constexpr PanelFormat kFormat = kPanelFormat<dtype>;
  constexpr int64_t kNumFactors = kSliceColumns / kFormat.run_length * kPanelRows;
  alignas(64) uint8_t values[kSliceColumns * kPanelRows];
  alignas(64) float scales[kNumFactors];
  alignas(64) float minima[kFormat.has_minimum ? kNumFactors : 1];
  for (int64_t p = 0; p < w.num_panels; ++p) {
    const std::byte* panel = w.data + p * w.panel_bytes;
    for (int s = 0; s < segments.num_segments; ++s) {
      const int64_t begin = segments.border[s], end = segments.border[s + 1];
      const DotOutput segment_out = {out.data + s * out.segment_stride + p * kPanelRows,
                                     out.row_stride, out.segment_stride};
      int64_t borders[2] = {begin, begin};
      do {
        borders[0] = borders[1];
        borders[1] = end - borders[0] < kSliceColumns ? end : borders[0] + kSliceColumns;
        const ExpandedPanel slice = {borders[0],
                                     borders[1] - borders[0],
                                     kFormat.run_length,
                                     kFormat.has_minimum,
                                     values,
                                     scales,
                                     minima,
                                     kFormat.value_bits()};
        ExpandPanel<dtype>(panel, w.cols, slice);
        DotExpandedPartAvx2(&slice, 1, x, x_rows, {borders, 1}, borders[0] != begin, segment_out);
      } while (borders[1] < end);
    }
  }
}

template <DType dtype>
void DotPanels(const Panels& w, const QuantizedRows& x, const RowSelection& x_rows,
               const Segments& segments, const DotOutput& out) {
  if constexpr (!IsDecodedAnew<kPanelFormat<dtype>>()) {
    if (x_rows.count >= kMinSliceRows) return DotSlices<dtype>(w, x, x_rows, segments, out);
  }
  DotPackedPanels<dtype>(w, x, x_rows, segments, out);
}

// ---- the table ----------------------------------------------------------------------------------

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

const LevelFunctions kAvx2Functions = {Format, DotExpandedAvx2, QuantizeRowAvx2};

}  // namespace switchyard::kernels::cpu
