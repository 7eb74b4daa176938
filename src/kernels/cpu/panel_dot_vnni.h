// The loops over row panels of the levels with dot products of bytes (vpdpbusd), once for both
// vector widths. Private to the files of these levels.
//
// `L` is a level: a struct of that file with the vector types `Bytes` (also of 32-bit integers) and
// `Floats`, kVectorRows (rows in a vector: 16 or 8) and one static function per operation. A slice
// is what one vector covers of a panel: all its rows or half of them.
//
// All names are in an unnamed namespace, and so are the levels: nothing here may be merged with
// code of another level.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/panel.h"
#include "kernels/cpu/panel_dot.h"

namespace switchyard::kernels::cpu {
namespace {  // NOLINT(google-build-namespaces): see above

#define SWITCHYARD_INLINE [[gnu::always_inline]] inline

template <typename L>
constexpr int kSlices = static_cast<int>(kPanelRows) / L::kVectorRows;

// ---- weights --------------------------------------------------------------------------------

// Values of the 16 codes with 128 added. kOdd is a table too: a lookup costs no more than a mask.
template <PanelFormat kFormat>
constexpr std::array<uint8_t, 16> kUnsignedValues = [] {
  std::array<uint8_t, 16> values{};
  for (int code = 0; code < 16; ++code) {
    const auto at = static_cast<size_t>(code);
    const int value = kFormat.code == PanelCode::kOdd ? 2 * code - 15 : kFormat.table[at];
    values[at] = static_cast<uint8_t>(value + 128);
  }
  return values;
}();

// The weights of a format as unsigned bytes: what they are too large by is kExcess.
template <typename L, DType dtype>
struct Weights {
  using Bytes = typename L::Bytes;
  using Floats = typename L::Floats;
  static constexpr PanelFormat kFormat = kPanelFormat<dtype>;
  static constexpr bool kLooksUp = kFormat.code != PanelCode::kOffset;
  static constexpr int kExcess = kLooksUp ? 128 : kFormat.offset;
  static constexpr int kRuns = static_cast<int>(kPanelGroup) / kFormat.run_length;  // of a group

  Bytes table;

  SWITCHYARD_INLINE Weights() : table(L::Table(kUnsignedValues<kFormat>.data())) {}

  // Columns 4 t..4 t + 3 of a group: four bytes for each row of the slice where `quants` begins.
  template <int t>
  SWITCHYARD_INLINE Bytes Columns(const uint8_t* quants) const {
    if constexpr (kFormat.bits == 8) return L::Load(quants + 64 * t);
    Bytes codes = L::Load(quants + 64 * (t / 2));
    if constexpr (t % 2 == 1) codes = L::template ShiftRight<4>(codes);
    if constexpr (kLooksUp) return L::Lookup(table, codes);
    codes = L::And(codes, L::AllBytes(0x0f));
    if constexpr (kFormat.bits == 5) {
      return L::OrMasked(codes, MoveTo4<t>(L::Load(quants + 256)), L::AllBytes(0x10));
    }
    if constexpr (kFormat.bits == 6) {
      const Bytes high = L::Load(quants + 256 + 64 * (t / 4));
      return L::OrMasked(codes, MoveTo4<2 * (t % 4)>(high), L::AllBytes(0x30));
    }
    return codes;
  }

  // W of one run of a group, and the minimum without its sign (kNegated).
  struct Factors {
    Floats scale[kRuns];
    Floats minimum;
  };
  static constexpr bool kNegated = kFormat.has_blocks;

  // Of group `group` (of the whole row), for the rows of a slice.
  SWITCHYARD_INLINE static Factors FactorsOf(const uint8_t* panel, int64_t group, int slice) {
    constexpr int64_t kGroups = kFormat.has_blocks ? kPanelBlock / kPanelGroup : 1;
    const uint8_t* at = panel + group / kGroups * kFormat.factor_bytes();
    const int64_t row = slice * L::kVectorRows;
    Floats d = L::LoadHalves(at + 2 * row);
    if constexpr (kFormat.factor != 1.0f) d = L::Multiply(d, L::All(kFormat.factor));
    Factors factors;
    if constexpr (kFormat.has_minimum) {
      factors.minimum = L::LoadHalves(at + 2 * kPanelRows + 2 * row);
    }
    if constexpr (!kFormat.has_blocks) {
      factors.scale[0] = d;
    } else {
      at += (kFormat.has_minimum ? 4 : 2) * kPanelRows +
            group % kGroups * kFormat.group_factor_bytes() + row;
      for (int run = 0; run < kRuns; ++run) {
        factors.scale[run] =
            L::Multiply(d, L::template LoadScales<kFormat.signed_scales>(at + run * kPanelRows));
      }
      if constexpr (kFormat.has_minimum) {
        factors.minimum =
            L::Multiply(factors.minimum, L::template LoadScales<false>(at + kRuns * kPanelRows));
      }
    }
    return factors;
  }

 private:
  // Bit `from` of each byte to bit 4; what crosses into a neighbour is for the caller to mask.
  template <int from>
  SWITCHYARD_INLINE static Bytes MoveTo4(Bytes bits) {
    if constexpr (from < 4) return L::template ShiftLeft<4 - from>(bits);
    if constexpr (from > 4) return L::template ShiftRight<from - 4>(bits);
    return bits;
  }
};

// ---- activations ----------------------------------------------------------------------------

// The arrays of QuantizedRows from a column on. One number leads to a row in all of them: `unit`,
// its distance in the arrays of four bytes per 32 columns.
struct XColumns {
  const std::byte* quants;
  const std::byte* scales;
  const std::byte* half_offsets;
  const std::byte* half_sums;
  const std::byte* group_sums;

  SWITCHYARD_INLINE XColumns(const QuantizedRows& x, int64_t column)
      : quants(reinterpret_cast<const std::byte*>(x.quants + column)),
        scales(reinterpret_cast<const std::byte*>(x.scales + column / 32)),
        half_offsets(reinterpret_cast<const std::byte*>(x.half_offsets + column / 16)),
        half_sums(reinterpret_cast<const std::byte*>(x.half_sums + column / 16)),
        group_sums(reinterpret_cast<const std::byte*>(x.group_sums + column / 32)) {}

  static int64_t Unit(const QuantizedRows& x, int64_t row) { return row * (x.padded_cols / 8); }

  // Quants of word t (columns 4 t..4 t + 3), for all rows of a vector.
  template <typename L>
  SWITCHYARD_INLINE typename L::Bytes Quants(int64_t unit, int64_t t) const {
    return L::BroadcastBytes(quants + 8 * unit + 4 * t);
  }
  template <typename L>
  SWITCHYARD_INLINE typename L::Floats Scale(int64_t unit, int64_t group) const {
    return L::BroadcastFloat(scales + unit + 4 * group);
  }
  // Minus the excess times the sum of the quants of a half of a group.
  template <typename L, int kExcess>
  SWITCHYARD_INLINE typename L::Bytes Start(int64_t unit, int64_t half) const {
    if constexpr (kExcess == 0) return L::Zero();
    const typename L::Bytes offset = L::BroadcastBytes(half_offsets + 2 * unit + 4 * half);
    constexpr int kShift = kExcess == 128 ? 0 : kExcess == 32 ? 2 : kExcess == 16 ? 3 : 4;
    static_assert(kExcess == 0 || kExcess << kShift == 128);
    if constexpr (kShift == 0) return offset;
    return L::template ShiftRightSigned<kShift>(offset);
  }
  // scale * the sum of the quants of a run.
  template <typename L, int kRunLength>
  SWITCHYARD_INLINE typename L::Floats RunSum(int64_t unit, int64_t run) const {
    if constexpr (kRunLength == 16) return L::BroadcastFloat(half_sums + 2 * unit + 4 * run);
    return L::BroadcastFloat(group_sums + unit + 4 * run);
  }
};

// ---- packed panels, few activation rows -----------------------------------------------------

// One group of 32 columns: the `group`-th of the row and of the columns of `x`.
template <typename L, DType dtype, int kXRows>
SWITCHYARD_INLINE void GroupStep(const Weights<L, dtype>& weights, const uint8_t* panel,
                                 const uint8_t* quants, int64_t group, int slice, const XColumns& x,
                                 const int64_t* units, typename L::Floats* acc) {
  using W = Weights<L, dtype>;
  using Bytes = typename L::Bytes;
  constexpr int kRunLength = W::kFormat.run_length;
  // Two chains where there are two sums, or where one would be too long a wait.
  constexpr bool kTwoChains = kRunLength == 16 || kXRows == 1;
  const typename W::Factors factors = W::FactorsOf(panel, group, slice);
  Bytes sum[2][kXRows];
  const auto dot = [&]<int t>() __attribute__((always_inline)) {
    const Bytes columns = weights.template Columns<t>(quants);
    for (int b = 0; b < kXRows; ++b) {
      Bytes& to = sum[kTwoChains ? t / 4 : 0][b];
      to = L::Dot(to, columns, x.template Quants<L>(units[b], 8 * group + t));
    }
  };
  for (int b = 0; b < kXRows; ++b) {
    const Bytes first = x.template Start<L, W::kExcess>(units[b], 2 * group);
    const Bytes second = x.template Start<L, W::kExcess>(units[b], 2 * group + 1);
    sum[0][b] = kTwoChains || W::kExcess == 0 ? first : L::Add(first, second);
    sum[1][b] = second;
  }
  dot.template operator()<0>();
  dot.template operator()<1>();
  dot.template operator()<2>();
  dot.template operator()<3>();
  dot.template operator()<4>();
  dot.template operator()<5>();
  dot.template operator()<6>();
  dot.template operator()<7>();
  for (int b = 0; b < kXRows; ++b) {
    const auto x_scale = x.template Scale<L>(units[b], group);
    if constexpr (kRunLength == 32 && kTwoChains) sum[0][b] = L::Add(sum[0][b], sum[1][b]);
    for (int run = 0; run < W::kRuns; ++run) {
      acc[b] = L::MultiplyAdd(L::ToFloats(sum[run][b]), L::Multiply(factors.scale[run], x_scale),
                              acc[b]);
    }
    if constexpr (W::kFormat.has_minimum) {
      const auto x_sum = x.template RunSum<L, kRunLength>(units[b], group);
      acc[b] = W::kNegated ? L::NegatedMultiplyAdd(factors.minimum, x_sum, acc[b])
                           : L::MultiplyAdd(factors.minimum, x_sum, acc[b]);
    }
  }
}

// kXRows activation rows with one panel, over one segment. Slices take turns every 256 columns, so
// that the weights are one stream through memory.
template <typename L, DType dtype, int kXRows>
void DotPanelTile(const uint8_t* panel, int64_t cols, const QuantizedRows& x,
                  const RowSelection& x_rows, int64_t b_first, int64_t begin, int64_t end,
                  float* out, int64_t row_stride) {
  constexpr PanelFormat kFormat = kPanelFormat<dtype>;
  const Weights<L, dtype> weights;
  const uint8_t* quants = panel + kFormat.quants_begin(cols);
  const XColumns columns(x, 0);
  int64_t units[kXRows];
  typename L::Floats acc[kSlices<L>][kXRows];
  for (int b = 0; b < kXRows; ++b) {
    units[b] = XColumns::Unit(x, x_rows[b_first + b]);
    for (int slice = 0; slice < kSlices<L>; ++slice) acc[slice][b] = L::All(0.0f);
  }
  const int64_t last = end / kPanelGroup;
  for (int64_t group = begin / kPanelGroup; group < last;) {
    const int64_t next_block = group / 8 * 8 + 8;
    const int64_t stop = next_block < last ? next_block : last;
    for (int slice = 0; slice < kSlices<L>; ++slice) {
      for (int64_t g = group; g < stop; ++g) {
        GroupStep<L, dtype, kXRows>(
            weights, panel, quants + g * kFormat.group_quant_bytes() + 4 * slice * L::kVectorRows,
            g, slice, columns, units, acc[slice]);
      }
    }
    group = stop;
  }
  for (int b = 0; b < kXRows; ++b) {
    for (int slice = 0; slice < kSlices<L>; ++slice) {
      L::Store(out + b * row_stride + slice * L::kVectorRows, acc[slice][b]);
    }
  }
}

template <typename L, DType dtype>
void DotPanels(const Panels& w, const QuantizedRows& x, const RowSelection& x_rows,
               const Segments& segments, const DotOutput& out) {
  const auto* panel = reinterpret_cast<const uint8_t*>(w.data);
  for (int64_t p = 0; p < w.num_panels; ++p, panel += w.panel_bytes) {
    for (int s = 0; s < segments.num_segments; ++s) {
      const int64_t begin = segments.border[s];
      const int64_t end = segments.border[s + 1];
      float* to = out.data + s * out.segment_stride + p * kPanelRows;
      int64_t b = 0;
      const auto rows = [&]<int kXRows>() {
        for (; b + kXRows <= x_rows.count; b += kXRows) {
          DotPanelTile<L, dtype, kXRows>(panel, w.cols, x, x_rows, b, begin, end,
                                         to + b * out.row_stride, out.row_stride);
        }
      };
      if constexpr (L::kMaxXRows >= 8) rows.template operator()<8>();
      rows.template operator()<4>();
      rows.template operator()<2>();
      rows.template operator()<1>();
    }
  }
}

// ---- expansion ------------------------------------------------------------------------------

template <typename L, DType dtype>
void ExpandPanel(const std::byte* panel_bytes, int64_t cols, const ExpandedPanel& out) {
  using W = Weights<L, dtype>;
  constexpr PanelFormat kFormat = W::kFormat;
  const W weights;
  const auto* panel = reinterpret_cast<const uint8_t*>(panel_bytes);
  const int64_t first = out.begin / kPanelGroup;
  const uint8_t* quants = panel + kFormat.quants_begin(cols) + first * kFormat.group_quant_bytes();
  uint8_t* values = out.values;
  float* scales = out.scales;
  float* minima = out.minima;
  for (int64_t g = 0; g < out.cols / kPanelGroup; ++g) {
    for (int slice = 0; slice < kSlices<L>; ++slice) {
      const int rows = slice * L::kVectorRows;
      const auto expand = [&]<int t>() __attribute__((always_inline)) {
        typename L::Bytes bytes = weights.template Columns<t>(quants + 4 * rows);
        if constexpr (W::kExcess != 128) {
          bytes = L::AddBytes(bytes, L::AllBytes(128 - W::kExcess));
        }
        L::StoreBytes(values + 64 * t + 4 * rows, bytes);
      };
      expand.template operator()<0>();
      expand.template operator()<1>();
      expand.template operator()<2>();
      expand.template operator()<3>();
      expand.template operator()<4>();
      expand.template operator()<5>();
      expand.template operator()<6>();
      expand.template operator()<7>();
      const typename W::Factors factors = W::FactorsOf(panel, first + g, slice);
      for (int run = 0; run < W::kRuns; ++run) {
        L::Store(scales + run * kPanelRows + rows, factors.scale[run]);
      }
      if constexpr (kFormat.has_minimum) {
        L::Store(minima + rows, W::kNegated ? L::Negate(factors.minimum) : factors.minimum);
      }
    }
    quants += kFormat.group_quant_bytes();
    values += kPanelGroup * kPanelRows;
    scales += W::kRuns * kPanelRows;
    minima += kPanelRows;
  }
}

// ---- expanded panels, any number of activation rows -----------------------------------------

// Slices by kXRows activation rows over runs [first, last) of the expanded columns. Slice u of the
// tile is slice u % kSlices of panel u / kSlices. Sums begin with what `out` holds if `resume`.
template <typename L, bool kHasMinimum, int kRunLength, int kTileSlices, int kXRows>
void ExpandedTile(const ExpandedPanel* panels, const XColumns& x, const int64_t* units,
                  int64_t first, int64_t last, bool resume, float* out, int64_t row_stride) {
  using Bytes = typename L::Bytes;
  using Floats = typename L::Floats;
  constexpr int kWords = kRunLength / 4;
  constexpr int kHalves = kRunLength / 16;
  const uint8_t* values[kTileSlices];
  const float* scales[kTileSlices];
  const float* minima[kTileSlices];
  Floats acc[kTileSlices][kXRows];
  for (int u = 0; u < kTileSlices; ++u) {
    const ExpandedPanel& panel = panels[u / kSlices<L>];
    const int row = u % kSlices<L> * L::kVectorRows;
    values[u] = panel.values + 4 * row;
    scales[u] = panel.scales + row;
    minima[u] = panel.minima + row;
    for (int b = 0; b < kXRows; ++b) {
      acc[u][b] = resume ? L::LoadFloats(out + b * row_stride + u * L::kVectorRows) : L::All(0.0f);
    }
  }
  for (int64_t run = first; run < last; ++run) {
    Bytes sum[kTileSlices][kXRows];
    for (int b = 0; b < kXRows; ++b) {
      Bytes start = x.template Start<L, 128>(units[b], kHalves * run);
      if constexpr (kHalves == 2) {
        start = L::Add(start, x.template Start<L, 128>(units[b], kHalves * run + 1));
      }
      for (int u = 0; u < kTileSlices; ++u) sum[u][b] = start;
    }
#pragma GCC unroll 8
    for (int t = 0; t < kWords; ++t) {
      Bytes columns[kTileSlices];
      for (int u = 0; u < kTileSlices; ++u) {
        columns[u] = L::Load(values[u] + 64 * (kWords * run + t));
      }
      for (int b = 0; b < kXRows; ++b) {
        const Bytes quants = x.template Quants<L>(units[b], kWords * run + t);
        for (int u = 0; u < kTileSlices; ++u) sum[u][b] = L::Dot(sum[u][b], columns[u], quants);
      }
    }
    for (int u = 0; u < kTileSlices; ++u) {
      const Floats scale = L::LoadFloats(scales[u] + kPanelRows * run);
      for (int b = 0; b < kXRows; ++b) {
        const Floats x_scale = x.template Scale<L>(units[b], kRunLength == 32 ? run : run / 2);
        acc[u][b] = L::MultiplyAdd(L::ToFloats(sum[u][b]), L::Multiply(scale, x_scale), acc[u][b]);
      }
      if constexpr (kHasMinimum) {
        const Floats minimum = L::LoadFloats(minima[u] + kPanelRows * run);
        for (int b = 0; b < kXRows; ++b) {
          acc[u][b] =
              L::MultiplyAdd(minimum, x.template RunSum<L, kRunLength>(units[b], run), acc[u][b]);
        }
      }
    }
  }
  for (int b = 0; b < kXRows; ++b) {
    for (int u = 0; u < kTileSlices; ++u) {
      L::Store(out + b * row_stride + u * L::kVectorRows, acc[u][b]);
    }
  }
}

// All activation rows with the panels of one tile, over one segment.
template <typename L, bool kHasMinimum, int kRunLength, int kTileSlices>
void ExpandedSegment(const ExpandedPanel* panels, const QuantizedRows& x,
                     const RowSelection& x_rows, int64_t begin, int64_t end, float* out,
                     int64_t row_stride) {
  const XColumns columns(x, panels->begin);
  const int64_t origin = panels->begin;
  int64_t from = begin;
  do {
    const int64_t to = end - from > L::kTileColumns ? from + L::kTileColumns : end;
    int64_t b = 0;
    const auto rows = [&]<int kXRows>() {
      for (; b + kXRows <= x_rows.count; b += kXRows) {
        int64_t units[kXRows];
        for (int i = 0; i < kXRows; ++i) units[i] = XColumns::Unit(x, x_rows[b + i]);
        ExpandedTile<L, kHasMinimum, kRunLength, kTileSlices, kXRows>(
            panels, columns, units, (from - origin) / kRunLength, (to - origin) / kRunLength,
            from != begin, out + b * row_stride, row_stride);
      }
    };
    rows.template operator()<L::kTileXRows>();
    if constexpr (L::kTileXRows > 3) rows.template operator()<3>();
    rows.template operator()<1>();
    from = to;
  } while (from < end);
}

template <typename L, bool kHasMinimum, int kRunLength>
void DotExpandedAs(const ExpandedPanel* panels, int64_t num_panels, const QuantizedRows& x,
                   const RowSelection& x_rows, const Segments& segments, const DotOutput& out) {
  constexpr int kTilePanels = L::kTileSlices / kSlices<L>;
  for (int s = 0; s < segments.num_segments; ++s) {
    const int64_t begin = segments.border[s];
    const int64_t end = segments.border[s + 1];
    float* to = out.data + s * out.segment_stride;
    int64_t p = 0;
    for (; p + kTilePanels <= num_panels; p += kTilePanels) {
      ExpandedSegment<L, kHasMinimum, kRunLength, L::kTileSlices>(
          panels + p, x, x_rows, begin, end, to + p * kPanelRows, out.row_stride);
    }
    if constexpr (kTilePanels == 1) continue;
    for (; p < num_panels; ++p) {
      ExpandedSegment<L, kHasMinimum, kRunLength, kSlices<L>>(panels + p, x, x_rows, begin, end,
                                                              to + p * kPanelRows, out.row_stride);
    }
  }
}

template <typename L>
void DotExpanded(const ExpandedPanel* panels, int64_t num_panels, const QuantizedRows& x,
                 const RowSelection& x_rows, const Segments& segments, const DotOutput& out) {
  if (num_panels == 0) return;
  if (panels->run_length == 32) {
    (panels->has_minimum
         ? DotExpandedAs<L, true, 32>
         : DotExpandedAs<L, false, 32>)(panels, num_panels, x, x_rows, segments, out);
  } else {
    (panels->has_minimum
         ? DotExpandedAs<L, true, 16>
         : DotExpandedAs<L, false, 16>)(panels, num_panels, x, x_rows, segments, out);
  }
}

// ---- the table ------------------------------------------------------------------------------

template <typename L, DType dtype>
constexpr FormatFunctions kBlockFormat = {DotPanels<L, dtype>, ExpandPanel<L, dtype>, nullptr};

// Entries of the formats with panels; those of the others are empty.
template <typename L>
FormatFunctions PanelFunctions(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return kBlockFormat<L, DType::kQ4_0>;
    case DType::kQ4_1:
      return kBlockFormat<L, DType::kQ4_1>;
    case DType::kQ5_0:
      return kBlockFormat<L, DType::kQ5_0>;
    case DType::kQ5_1:
      return kBlockFormat<L, DType::kQ5_1>;
    case DType::kQ8_0:
      return kBlockFormat<L, DType::kQ8_0>;
    case DType::kQ4_K:
      return kBlockFormat<L, DType::kQ4_K>;
    case DType::kQ5_K:
      return kBlockFormat<L, DType::kQ5_K>;
    case DType::kQ6_K:
      return kBlockFormat<L, DType::kQ6_K>;
    case DType::kIQ4_NL:
      return kBlockFormat<L, DType::kIQ4_NL>;
    case DType::kIQ4_XS:
      return kBlockFormat<L, DType::kIQ4_XS>;
    case DType::kIQ3_S:
      return kBlockFormat<L, DType::kIQ3_S>;
    case DType::kIQ3_XXS:
      return kBlockFormat<L, DType::kIQ3_XXS>;
    default:
      return {};
  }
}

}  // namespace
}  // namespace switchyard::kernels::cpu
