// The loops over row panels of the levels with dot products of bytes, once for both vector widths.
// Private to the files of these levels; words and rules are those of panel_decode_vnni.h. A level
// also has
//   kMaxXRows                      most activation rows of a step that decodes in registers
//   kExpandFromRows                activation rows from which on panels are expanded first
//   kTileSlices, kTileXRows        slices and activation rows of a tile of expanded panels
//   kTileColumns                   columns after which a tile goes to the next activation rows
#pragma once

#include <cstdint>

#include "kernels/cpu/panel_decode_vnni.h"

namespace switchyard::kernels::cpu {
namespace {  // NOLINT(google-build-namespaces): see there

// ---- packed panels, few activation rows -----------------------------------------------------

// One group of 32 columns, the `group`-th of a block and of the columns of `x`.
template <typename L, DType dtype, int kXRows>
SWITCHYARD_INLINE void GroupStep(const Weights<L, dtype>& weights, const uint8_t* quants,
                                 const typename Weights<L, dtype>::BlockFactors& block_factors,
                                 int64_t group, const XColumns& x, const int64_t* units,
                                 typename L::Floats* acc) {
  using W = Weights<L, dtype>;
  using Bytes = typename L::Bytes;
  constexpr int kRunLength = W::kFormat.run_length;
  // Two chains where there are two sums, or where one would be too long a wait.
  constexpr bool kTwoChains = kRunLength == 16 || kXRows == 1;
  const typename W::Factors factors = block_factors.Of(group);
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
  using W = Weights<L, dtype>;
  constexpr PanelFormat kFormat = W::kFormat;
  const W weights;
  int64_t units[kXRows];
  typename L::Floats acc[kSlices<L>][kXRows];
  for (int b = 0; b < kXRows; ++b) {
    units[b] = XColumns::Unit(x, x_rows[b_first + b]);
    for (int slice = 0; slice < kSlices<L>; ++slice) acc[slice][b] = L::All(0.0f);
  }
  int64_t first = begin / kPanelGroup % kGroupsPerBlock;  // of the block
  for (int64_t column = begin; column < end;) {
    const int64_t block = column / kPanelBlock;
    const int64_t rest = first + (end - column) / kPanelGroup;
    const int64_t last = rest < kGroupsPerBlock ? rest : kGroupsPerBlock;
    const XColumns block_x(x, block * kPanelBlock);
    const uint8_t* block_quants =
        panel + kFormat.quants_begin(cols) + block * kGroupsPerBlock * kFormat.group_quant_bytes();
    const Prefetcher<kFormat> prefetcher(panel, cols, block, kFormat.panel_bytes(cols));
    const auto slice_step = [&]<int slice>() __attribute__((always_inline)) {
      const typename W::BlockFactors factors(panel, block, slice);
      const uint8_t* quants = block_quants + 4 * slice * L::kVectorRows;
      typename L::Floats sums[kXRows];  // in registers
      for (int b = 0; b < kXRows; ++b) sums[b] = acc[slice][b];
      for (int64_t group = first; group < last; ++group) {
        if (slice == 0) prefetcher.FetchGroup(group);
        GroupStep<L, dtype, kXRows>(weights, quants + group * kFormat.group_quant_bytes(), factors,
                                    group, block_x, units, sums);
      }
      for (int b = 0; b < kXRows; ++b) acc[slice][b] = sums[b];
    };
    slice_step.template operator()<0>();
    if constexpr (kSlices<L> == 2) slice_step.template operator()<1>();
    column += (last - first) * kPanelGroup;
    first = 0;
  }
  for (int b = 0; b < kXRows; ++b) {
    for (int slice = 0; slice < kSlices<L>; ++slice) {
      L::Store(out + b * row_stride + slice * L::kVectorRows, acc[slice][b]);
    }
  }
}

// ---- expanded panels, any number of activation rows -----------------------------------------

// What to fetch meanwhile: so many bytes with every run.
struct Ahead {
  uintptr_t address;
  int64_t bytes_per_run;
};

// Slices by kXRows activation rows over runs [first, last) of the expanded columns. Slice u of the
// tile is slice u % kSlices of panel u / kSlices. Sums begin with what `out` holds if `resume`.
template <typename L, bool kHasMinimum, int kRunLength, int kTileSlices, int kXRows>
void ExpandedTile(const ExpandedPanel* panels, const XColumns& x, const int64_t* units,
                  int64_t first, int64_t last, bool resume, Ahead ahead, float* out,
                  int64_t row_stride) {
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
    minima[u] = kHasMinimum ? panel.minima + row : nullptr;
    for (int b = 0; b < kXRows; ++b) {
      acc[u][b] = resume ? L::LoadFloats(out + b * row_stride + u * L::kVectorRows) : L::All(0.0f);
    }
  }
  for (int64_t run = first; run < last; ++run) {
    for (int64_t i = 0; i < ahead.bytes_per_run; i += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(ahead.address + static_cast<uintptr_t>(i)));
    }
    ahead.address += static_cast<uintptr_t>(ahead.bytes_per_run);
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

// All activation rows with the panels of one tile, over columns [from, to). The first tiles fetch
// what is ahead, each for one panel; null for nothing.
template <typename L, bool kHasMinimum, int kRunLength, int kTileSlices>
void ExpandedTiles(const ExpandedPanel* panels, const QuantizedRows& x, const RowSelection& x_rows,
                   int64_t from, int64_t to, bool resume, const Ahead* ahead, float* out,
                   int64_t row_stride) {
  const int64_t origin = panels->begin;
  const XColumns columns(x, origin);
  constexpr int kTilePanels = kTileSlices / kSlices<L>;
  int64_t b = 0;
  const auto tile = [&]<int kXRows>() {
    int64_t units[kXRows];
    for (int i = 0; i < kXRows; ++i) units[i] = XColumns::Unit(x, x_rows[b + i]);
    const bool fetches = ahead != nullptr && b < kTilePanels * L::kTileXRows;
    const Ahead tile_ahead = fetches ? ahead[b / L::kTileXRows] : Ahead{};
    ExpandedTile<L, kHasMinimum, kRunLength, kTileSlices, kXRows>(
        panels, columns, units, (from - origin) / kRunLength, (to - origin) / kRunLength, resume,
        tile_ahead, out + b * row_stride, row_stride);
    b += kXRows;
  };
  while (x_rows.count - b >= L::kTileXRows) tile.template operator()<L::kTileXRows>();
  const auto rest = [&]<int kXRows>() {
    if constexpr (kXRows < L::kTileXRows) {
      if (x_rows.count - b == kXRows) tile.template operator()<kXRows>();
    }
  };
  rest.template operator()<5>();
  rest.template operator()<4>();
  rest.template operator()<3>();
  rest.template operator()<2>();
  rest.template operator()<1>();
}

// Calls work(from, to) for the columns of a segment, so many at a time that the weights of a tile
// stay in the first-level cache while the activation rows pass by; once for an empty segment.
template <typename L, typename Work>
SWITCHYARD_INLINE void ForTileColumns(int64_t begin, int64_t end, const Work& work) {
  int64_t from = begin;
  do {
    const int64_t to = end - from > L::kTileColumns ? from + L::kTileColumns : end;
    work(from, to);
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
    const auto segment = [&]<int kTileSlices>() {
      ForTileColumns<L>(begin, end, [&](int64_t from, int64_t until) {
        ExpandedTiles<L, kHasMinimum, kRunLength, kTileSlices>(panels + p, x, x_rows, from, until,
                                                               from != begin, nullptr,
                                                               to + p * kPanelRows, out.row_stride);
      });
    };
    for (; p + kTilePanels <= num_panels; p += kTilePanels) {
      segment.template operator()<L::kTileSlices>();
    }
    if constexpr (kTilePanels == 1) continue;
    for (; p < num_panels; ++p) segment.template operator()<kSlices<L>>();
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

// ---- packed panels, any number of activation rows -------------------------------------------

// Expands the columns of a tile into the first-level cache before the activation rows pass by.
template <typename L, DType dtype, int kTileSlices>
void DotPanelsExpanding(const uint8_t* panel, const Panels& w, const QuantizedRows& x,
                        const RowSelection& x_rows, const Segments& segments,
                        const DotOutput& out) {
  constexpr PanelFormat kFormat = kPanelFormat<dtype>;
  constexpr int kTilePanels = kTileSlices / kSlices<L>;
  constexpr int64_t kFactors = L::kTileColumns / kFormat.run_length * kPanelRows;
  alignas(64) uint8_t values[kTilePanels][L::kTileColumns * kPanelRows];
  alignas(64) float scales[kTilePanels][kFactors];
  alignas(64) float minima[kTilePanels][kFormat.has_minimum ? kFactors : 1];
  for (int s = 0; s < segments.num_segments; ++s) {
    const int64_t begin = segments.border[s];
    float* to = out.data + s * out.segment_stride;
    ForTileColumns<L>(begin, segments.border[s + 1], [&](int64_t from, int64_t until) {
      ExpandedPanel panels[kTilePanels];
      Ahead ahead[kTilePanels];
      const int64_t next =
          until < segments.border[segments.num_segments] ? until : segments.border[0];
      for (int p = 0; p < kTilePanels; ++p) {
        ahead[p] = {
            reinterpret_cast<uintptr_t>(panel) +
                static_cast<uintptr_t>((next == until ? p : kTilePanels + p) * w.panel_bytes +
                                       kFormat.quants_begin(w.cols) +
                                       next / kPanelGroup * kFormat.group_quant_bytes()),
            kFormat.group_quant_bytes() * kFormat.run_length / kPanelGroup};
        panels[p] = {from,      until - from, kFormat.run_length, kFormat.has_minimum,
                     values[p], scales[p],    minima[p]};
        ExpandColumns<L, dtype, false>(panel + p * w.panel_bytes, w.cols, panels[p],
                                       kTilePanels * w.panel_bytes);
      }
      ExpandedTiles<L, kFormat.has_minimum, kFormat.run_length, kTileSlices>(
          panels, x, x_rows, from, until, from != begin, ahead, to, out.row_stride);
    });
  }
}

// One panel and a few activation rows, decoding in registers.
template <typename L, DType dtype>
void DotPanelDirectly(const uint8_t* panel, const Panels& w, const QuantizedRows& x,
                      const RowSelection& x_rows, const Segments& segments, const DotOutput& out) {
  for (int s = 0; s < segments.num_segments; ++s) {
    const int64_t begin = segments.border[s];
    const int64_t end = segments.border[s + 1];
    float* to = out.data + s * out.segment_stride;
    int64_t b = 0;
    const auto rows = [&]<int kXRows>() {
      for (; b + kXRows <= x_rows.count; b += kXRows) {
        DotPanelTile<L, dtype, kXRows>(panel, w.cols, x, x_rows, b, begin, end,
                                       to + b * out.row_stride, out.row_stride);
      }
    };
    if constexpr (L::kMaxXRows >= 8) rows.template operator()<8>();
    if constexpr (L::kMaxXRows >= 8) rows.template operator()<6>();
    rows.template operator()<4>();
    rows.template operator()<3>();
    rows.template operator()<2>();
    rows.template operator()<1>();
  }
}

template <typename L, DType dtype>
void DotPanels(const Panels& w, const QuantizedRows& x, const RowSelection& x_rows,
               const Segments& segments, const DotOutput& out) {
  constexpr int kTilePanels = L::kTileSlices / kSlices<L>;
  const bool directly = x_rows.count < L::kExpandFromRows;
  for (int64_t p = 0; p < w.num_panels;) {
    const auto* panel = reinterpret_cast<const uint8_t*>(w.data) + p * w.panel_bytes;
    const DotOutput to = {out.data + p * kPanelRows, out.row_stride, out.segment_stride};
    if (directly) {
      DotPanelDirectly<L, dtype>(panel, w, x, x_rows, segments, to);
    } else if (p + kTilePanels <= w.num_panels) {
      DotPanelsExpanding<L, dtype, L::kTileSlices>(panel, w, x, x_rows, segments, to);
      p += kTilePanels;
      continue;
    } else {
      DotPanelsExpanding<L, dtype, kSlices<L>>(panel, w, x, x_rows, segments, to);
    }
    ++p;
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
