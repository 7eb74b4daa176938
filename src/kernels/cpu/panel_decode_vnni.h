// How the levels with dot products of bytes (vpdpbusd) read row panels and activations, once for
// both vector widths. Private to the files of these levels.
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

#include "kernels/cpu/panel.h"
#include "kernels/cpu/panel_dot.h"

namespace switchyard::kernels::cpu {
namespace {  // NOLINT(google-build-namespaces): see above

#define SWITCHYARD_INLINE [[gnu::always_inline]] inline

template <typename L>
constexpr int kSlices = static_cast<int>(kPanelRows) / L::kVectorRows;

constexpr int64_t kGroupsPerBlock = kPanelBlock / kPanelGroup;

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

  // Of the rows of a slice: W of each run of a group, and its minimum, without its sign where
  // kNegated.
  struct Factors {
    Floats scale[kRuns];
    Floats minimum;
  };
  static constexpr bool kNegated = kFormat.has_blocks;

  // Where the factors of a block of 256 columns are, and what its groups share, for a slice.
  class BlockFactors {
   public:
    SWITCHYARD_INLINE BlockFactors(const uint8_t* panel, int64_t block, int slice) {
      const int64_t row = slice * L::kVectorRows;
      const int64_t per_block = kFormat.has_blocks ? 1 : kGroupsPerBlock;
      at_ = panel + block * per_block * kFormat.factor_bytes() + 2 * row;
      if constexpr (kFormat.has_blocks) {
        d_ = Scale(at_);
        if constexpr (kFormat.has_minimum) d_minimum_ = L::LoadHalves(at_ + 2 * kPanelRows);
        at_ += (kFormat.has_minimum ? 4 : 2) * kPanelRows - row;
      }
    }

    // Of a group, counted from the block's first.
    SWITCHYARD_INLINE Factors Of(int64_t group) const {
      Factors factors;
      if constexpr (!kFormat.has_blocks) {
        const uint8_t* at = at_ + group * kFormat.factor_bytes();
        factors.scale[0] = Scale(at);
        if constexpr (kFormat.has_minimum) factors.minimum = L::LoadHalves(at + 2 * kPanelRows);
      } else {
        const uint8_t* at = at_ + group * kFormat.group_factor_bytes();
        for (int run = 0; run < kRuns; ++run, at += kPanelRows) {
          factors.scale[run] = L::Multiply(d_, L::template LoadScales<kFormat.signed_scales>(at));
        }
        if constexpr (kFormat.has_minimum) {
          factors.minimum = L::Multiply(d_minimum_, L::template LoadScales<false>(at));
        }
      }
      return factors;
    }

   private:
    SWITCHYARD_INLINE static Floats Scale(const uint8_t* halves) {
      const Floats d = L::LoadHalves(halves);
      return kFormat.factor == 1.0f ? d : L::Multiply(d, L::All(kFormat.factor));
    }

    const uint8_t* at_;
    Floats d_, d_minimum_;
  };

 private:
  // Bit `from` of each byte to bit 4; what crosses into a neighbour is for the caller to mask.
  template <int from>
  SWITCHYARD_INLINE static Bytes MoveTo4(Bytes bits) {
    if constexpr (from < 4) return L::template ShiftLeft<4 - from>(bits);
    if constexpr (from > 4) return L::template ShiftRight<from - 4>(bits);
    return bits;
  }
};

// Fetches a panel and the one behind it ahead of their use: by themselves, processors follow a
// stream as dense in work as this one at half of the memory's speed (Zen 5: 19 of 39 GB/s for one
// row of IQ4_XS, 34 with this distance; 4 and 8 KiB give 30). Quants are fetched kDistance bytes
// ahead, past the factors of the next panel, and those a whole panel ahead. The next panel begins
// `next` bytes behind this one.
template <PanelFormat kFormat>
class Prefetcher {
 public:
  SWITCHYARD_INLINE Prefetcher(const uint8_t* panel, int64_t cols, int64_t block, int64_t next) {
    constexpr int64_t kBlockQuants = kGroupsPerBlock * kFormat.group_quant_bytes();
    constexpr int64_t kBlockFactors =
        kFormat.factor_bytes() * (kFormat.has_blocks ? 1 : kGroupsPerBlock);
    const int64_t panel_bytes = kFormat.panel_bytes(cols);
    const int64_t factor_bytes = kFormat.quants_begin(cols);
    const auto begin = reinterpret_cast<uintptr_t>(panel);
    int64_t ahead = factor_bytes + block * kBlockQuants + kDistance;
    if (ahead >= panel_bytes) ahead += next - panel_bytes + factor_bytes;
    quants_ = begin + static_cast<uintptr_t>(ahead);
    Fetch<kBlockFactors>(begin + static_cast<uintptr_t>(next + block * kBlockFactors));
  }

  // Quants as far ahead of a group as they should be.
  SWITCHYARD_INLINE void FetchGroup(int64_t group) const {
    Fetch<kFormat.group_quant_bytes()>(quants_ +
                                       static_cast<uintptr_t>(group * kFormat.group_quant_bytes()));
  }

 private:
  static constexpr int64_t kDistance = 6144;

  // The address may lie past the matrix: a prefetch does not fault.
  template <int64_t kBytes>
  SWITCHYARD_INLINE static void Fetch(uintptr_t address) {
    for (uintptr_t i = 0; i < kBytes; i += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(address + i));
    }
  }

  uintptr_t quants_;
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

// ---- expansion ------------------------------------------------------------------------------

// The columns of `out`. The next panel to come begins `next` bytes behind this one.
template <typename L, DType dtype, bool kFetchQuants>
void ExpandColumns(const uint8_t* panel, int64_t cols, const ExpandedPanel& out, int64_t next) {
  using W = Weights<L, dtype>;
  constexpr PanelFormat kFormat = W::kFormat;
  static_assert(!kFormat.has_minimum || W::kRuns == 1);
  const W weights;
  const int64_t end = out.begin + out.cols;
  int64_t first = out.begin / kPanelGroup % kGroupsPerBlock;  // of the block
  for (int64_t column = out.begin; column < end;) {
    const int64_t block = column / kPanelBlock;
    const int64_t rest = first + (end - column) / kPanelGroup;
    const int64_t last = rest < kGroupsPerBlock ? rest : kGroupsPerBlock;
    const int64_t done = block * kGroupsPerBlock - out.begin / kPanelGroup;
    const uint8_t* block_quants =
        panel + kFormat.quants_begin(cols) + block * kGroupsPerBlock * kFormat.group_quant_bytes();
    const Prefetcher<kFormat> prefetcher(panel, cols, block, next);
    for (int slice = 0; slice < kSlices<L>; ++slice) {
      const typename W::BlockFactors block_factors(panel, block, slice);
      const int row = slice * L::kVectorRows;
      for (int64_t group = first; group < last; ++group) {
        if (kFetchQuants && slice == 0) prefetcher.FetchGroup(group);
        const uint8_t* quants = block_quants + group * kFormat.group_quant_bytes() + 4 * row;
        uint8_t* values = out.values + (done + group) * kPanelGroup * kPanelRows + 4 * row;
        const auto expand = [&]<int t>() __attribute__((always_inline)) {
          typename L::Bytes bytes = weights.template Columns<t>(quants);
          if constexpr (W::kExcess != 128) {
            bytes = L::AddBytes(bytes, L::AllBytes(128 - W::kExcess));
          }
          L::StoreBytes(values + 64 * t, bytes);
        };
        expand.template operator()<0>();
        expand.template operator()<1>();
        expand.template operator()<2>();
        expand.template operator()<3>();
        expand.template operator()<4>();
        expand.template operator()<5>();
        expand.template operator()<6>();
        expand.template operator()<7>();
        const typename W::Factors factors = block_factors.Of(group);
        for (int run = 0; run < W::kRuns; ++run) {
          L::Store(out.scales + ((done + group) * W::kRuns + run) * kPanelRows + row,
                   factors.scale[run]);
        }
        if constexpr (kFormat.has_minimum) {
          L::Store(out.minima + (done + group) * kPanelRows + row,
                   W::kNegated ? L::Negate(factors.minimum) : factors.minimum);
        }
      }
    }
    column += (last - first) * kPanelGroup;
    first = 0;
  }
}

template <typename L, DType dtype>
void ExpandPanel(const std::byte* panel, int64_t cols, const ExpandedPanel& out) {
  ExpandColumns<L, dtype, true>(reinterpret_cast<const uint8_t*>(panel), cols, out,
                                kPanelFormat<dtype>.panel_bytes(cols));
}

}  // namespace
}  // namespace switchyard::kernels::cpu
