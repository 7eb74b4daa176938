// Rows of activations in the two forms that CPU products read: binary32, and int8 in groups of 32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/tensor_view.h"

namespace switchyard::kernels::cpu {

inline constexpr int kGroupLength = 32;  // columns that share an activation scale

// Activation rows, quantised each for itself in groups of 32 columns:
//   scale = max|x| / 127, quant = x / scale rounded to nearest even, in [-127, 127].
// A group that is all zero (or below the smallest normal scale) has scale 0; one with an infinity
// or NaN has that scale and quants 0, so that the products become NaN instead of plausible.
//
// A view; the arrays lie in memory that the caller owns. Offsets are in elements, row by row.
//
// Shapes: quants [rows, padded_cols]; scales [rows, padded_cols / 32];
//         half_offsets [rows, padded_cols / 16], -128 * the sum of 16 quants: what an unsigned
//         product with 128 added to the weights has too much; half_sums [rows, padded_cols / 16]
//         and group_sums [rows, padded_cols / 32], scale * the sum of 16 or 32 quants, what
//         multiplies the minimum of weights.
struct QuantizedRows {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t padded_cols = 0;  // multiple of 32; columns from `cols` on are zero
  int8_t* quants = nullptr;
  float* scales = nullptr;
  int32_t* half_offsets = nullptr;
  float* half_sums = nullptr;
  float* group_sums = nullptr;

  // Bytes that `rows` rows of `cols` columns need, the margin for over-reads included.
  static int64_t Bytes(int64_t rows, int64_t cols);

  // Lays the arrays out in `memory`.
  // REQUIRES: `memory` is 64-byte aligned and has Bytes(rows, cols) bytes, which outlive the view.
  static QuantizedRows Place(std::byte* memory, int64_t rows, int64_t cols);

  // The rows from `first` on.
  QuantizedRows Rows(int64_t first, int64_t count) const;

  // The columns [begin, end) of one row as a row of their own, to be quantised apart from the
  // others.
  // REQUIRES: `begin` is a multiple of 32; so is `end`, or it is `cols`.
  QuantizedRows Columns(int64_t row, int64_t begin, int64_t end) const;
};

// Both forms of the same rows. `quantized` may be empty where only weights of type F32, F16 and
// BF16 are multiplied, `values` where none of them is.
struct ActivationRows {
  MatrixView<const float> values;
  QuantizedRows quantized;
};

}  // namespace switchyard::kernels::cpu
