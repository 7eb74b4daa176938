// Row panels: the layout in which the cpu backend keeps quantised matrices. Sixteen rows lie
// interleaved, so that one vector holds the same columns of all of them: no horizontal sums, scales
// are plain vector loads, and one broadcast of an activation serves sixteen rows.
//
// A panel covers kPanelRows rows and all K columns of a matrix (rows past its end are zero). With
// columns cut into groups of 32 and, for formats with 256-column blocks, groups cut into blocks:
//
//   factors   per block of 256 columns, if the format has such blocks:
//               d      half[16]           scale of each row
//               dmin   half[16]           formats with a minimum
//               per group: per run of kRunLength columns s 8-bit[16], integer scale of each row;
//                          then, with a minimum, m uint8[16]
//             else per group of 32 columns:
//               d      half[16]
//               dmin   half[16]           formats with a minimum
//             then zeros up to a multiple of 64 bytes.
//   quants    per group, 64-byte aligned:
//               nibbles  4 vectors of 64 bytes. Byte 4 r + i of vector j belongs to row r: its low
//                        half is column 8 j + i of the group, its high half column 8 j + 4 + i.
//               fifth    5-bit formats: one vector. Bit t of byte 4 r + i is bit 4 of column
//                        4 t + i of row r.
//               high     6-bit formats: two vectors. Bits 2 u and 2 u + 1 of byte 4 r + i of
//                        vector v are bits 4 and 5 of column 16 v + 4 u + i of row r.
//             or, 8-bit formats:
//               bytes    8 vectors. Byte 4 r + i of vector t is column 4 t + i of row r, with 128
//                        added.
//
// What an element is worth: value(code) * W, or value(code) * W + M with a minimum, where
//   W = factor * d * s (blocks of 256; exact in binary32) or d;   M = -(dmin * m), or dmin.
// PanelFormat says how a code becomes a value. The integers and factors are those of quant/block.h:
// packing loses nothing, and unpacking gives its bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace switchyard::kernels::cpu {

inline constexpr int64_t kPanelRows = 16;
inline constexpr int64_t kPanelGroup = 32;   // columns
inline constexpr int64_t kPanelBlock = 256;  // columns

// How the code of an element becomes its integer value.
enum class PanelCode {
  kTable,   // value = table[code], codes of 4 bits
  kOffset,  // value = code - offset
  kOdd,     // value = 2 code - 15, codes of 4 bits
};

// What the kernels must know of a format; all of it is fixed at compile time.
struct PanelFormat {
  DType dtype;
  int bits;            // of a code: 4, 5, 6 or 8
  bool has_blocks;     // 256-column blocks with 8-bit scales; else a half per group
  int run_length;      // columns that share a scale (and minimum): 32 or 16
  bool signed_scales;  // of the 8-bit scales
  bool has_minimum;
  PanelCode code;
  int offset;    // kOffset; 128 in 8-bit formats, where the codes are stored with it
  float factor;  // of W, a power of two
  std::array<int8_t, 16> table;  // kTable

  // Bits of the integer values: two's complement, or unsigned with a minimum.
  constexpr int value_bits() const {
    if (code == PanelCode::kOdd) return 5;
    if (code == PanelCode::kOffset) return bits;
    for (const int value : table) {
      if (value < -64 || value > 63) return 8;
    }
    return 7;
  }
  constexpr int64_t group_quant_bytes() const { return 64 * bits; }
  // Of one group without blocks, or of one block.
  constexpr int64_t factor_bytes() const {
    const int64_t halves = (has_minimum ? 2 : 1) * kPanelRows * 2;
    if (!has_blocks) return halves;
    const int64_t bytes_per_group = kPanelGroup / run_length + (has_minimum ? 1 : 0);
    return halves + kPanelBlock / kPanelGroup * bytes_per_group * kPanelRows;
  }
  // Bytes of the scales (and minimum) of one group inside a block.
  constexpr int64_t group_factor_bytes() const {
    return (kPanelGroup / run_length + (has_minimum ? 1 : 0)) * kPanelRows;
  }
  constexpr int64_t num_factors(int64_t cols) const {
    return cols / (has_blocks ? kPanelBlock : kPanelGroup);
  }
  // Offset of the quants in a panel.
  constexpr int64_t quants_begin(int64_t cols) const {
    return (num_factors(cols) * factor_bytes() + 63) / 64 * 64;
  }
  constexpr int64_t panel_bytes(int64_t cols) const {
    return quants_begin(cols) + cols / kPanelGroup * group_quant_bytes();
  }
};

// The formats with panels. kPanelFormat<dtype> for use in templates; an empty optional for types
// that have none (kept as stored).
constexpr std::optional<PanelFormat> MakePanelFormat(DType dtype) {
  constexpr std::array<int8_t, 16> kNoTable{};
  // Values of IQ4_XS and IQ4_NL; of IQ3_XXS with the sign as the highest bit.
  constexpr std::array<int8_t, 16> kIq4 = {-127, -104, -83, -65, -49, -35, -22, -10,
                                           1,    13,   25,  38,  53,  69,  89,  113};
  constexpr std::array<int8_t, 16> kIq3Xxs = {4,  12,  20,  28,  36,  44,  52,  62,
                                              -4, -12, -20, -28, -36, -44, -52, -62};
  using enum PanelCode;
  switch (dtype) {
    case DType::kQ4_0:
      return PanelFormat{dtype, 4, false, 32, false, false, kOffset, 8, 1.0f, kNoTable};
    case DType::kQ4_1:
      return PanelFormat{dtype, 4, false, 32, false, true, kOffset, 0, 1.0f, kNoTable};
    case DType::kQ5_0:
      return PanelFormat{dtype, 5, false, 32, false, false, kOffset, 16, 1.0f, kNoTable};
    case DType::kQ5_1:
      return PanelFormat{dtype, 5, false, 32, false, true, kOffset, 0, 1.0f, kNoTable};
    case DType::kQ8_0:
      return PanelFormat{dtype, 8, false, 32, false, false, kOffset, 128, 1.0f, kNoTable};
    case DType::kQ4_K:
      return PanelFormat{dtype, 4, true, 32, false, true, kOffset, 0, 1.0f, kNoTable};
    case DType::kQ5_K:
      return PanelFormat{dtype, 5, true, 32, false, true, kOffset, 0, 1.0f, kNoTable};
    case DType::kQ6_K:
      return PanelFormat{dtype, 6, true, 16, true, false, kOffset, 32, 1.0f, kNoTable};
    case DType::kIQ4_NL:
      return PanelFormat{dtype, 4, false, 32, false, false, kTable, 0, 1.0f, kIq4};
    case DType::kIQ4_XS:
      return PanelFormat{dtype, 4, true, 32, true, false, kTable, 0, 1.0f, kIq4};
    case DType::kIQ3_S:
      return PanelFormat{dtype, 4, true, 32, false, false, kOdd, 0, 1.0f, kNoTable};
    case DType::kIQ3_XXS:
      return PanelFormat{dtype, 4, true, 32, false, false, kTable, 0, 0.25f, kIq3Xxs};
    default:
      return std::nullopt;
  }
}

// REQUIRES: the type has panels.
template <DType dtype>
inline constexpr PanelFormat kPanelFormat = *MakePanelFormat(dtype);

// The format of a type, or null: at run time, without the cost of making it.
const PanelFormat* FindPanelFormat(DType dtype);

inline bool HasPanels(DType dtype) { return FindPanelFormat(dtype) != nullptr; }

// Bytes of `rows` rows as panels. REQUIRES: the type has panels.
inline int64_t PanelsBytes(DType dtype, int64_t rows, int64_t cols) {
  return (rows + kPanelRows - 1) / kPanelRows * FindPanelFormat(dtype)->panel_bytes(cols);
}

// Packs up to kPanelRows rows of a file into one panel.
//
// Shapes:   stored [num_rows] rows of RowBytes(dtype, cols), one after another, not aligned;
//           panel [panel_bytes(cols)] bytes, 64-byte aligned.
// Threads:  any.
// REQUIRES: HasPanels(dtype); cols is a multiple of the format's block length;
//           0 < num_rows <= kPanelRows. The missing rows become zeros.
void PackPanel(DType dtype, const std::byte* stored, int64_t num_rows, int64_t cols,
               std::byte* panel);

// Decodes one row of a panel to binary32: the bits of DequantizeRow() on the stored row.
//
// Shapes: out [cols].
void DecodePanelRow(DType dtype, const std::byte* panel, int64_t row, int64_t cols, float* out);

}  // namespace switchyard::kernels::cpu
