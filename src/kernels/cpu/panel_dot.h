// The inner loops of one instruction-set level, behind function pointers. Private to kernels/cpu;
// callers use matmul.h.
//
// All levels compute the same bits. The arithmetic of a dot product over columns [begin, end):
//
// Block formats. One accumulator, zero at first. A *run* is 16 or 32 columns that share factors
// (PanelFormat::run_length; 16 for formats without panels). For each run of the range, ascending,
// with integers w (the weights) and q (the activations), factors W and M of the weights and the
// activations' scale a:
//   acc = fma(float(sum of w q over the run), W * a, acc)
//   with a minimum: acc = fma(M, a * float(sum of q over the run), acc)
// Each product is rounded to binary32. The integer sums are exact (below 2^24), so how they are
// made does not matter.
//
// F32, F16, BF16. Activations are binary32; column c goes to lane (c - begin) % 16 of 16, zero at
// first: acc[lane] = fma(weight, x, acc[lane]), columns ascending; then with
// s[l] = acc[l] + acc[l + 8], l < 8, the result is ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 +
// s7)).
//
// Nothing depends on the number of rows of either operand.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/tensor_view.h"
#include "kernels/cpu/activation_rows.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/panel.h"

namespace switchyard::kernels::cpu {

// Results: element (segment s, activation row b, weight row r) at
// data[s * segment_stride + b * row_stride + r].
struct DotOutput {
  float* data;
  int64_t row_stride;
  int64_t segment_stride;
};

// Column ranges: segment s is [border[s], border[s + 1]); empty ones give 0.
struct Segments {
  const int64_t* border;
  int num_segments;
};

// Which activation rows take part: `index[b]`, or b itself if `index` is null.
struct RowSelection {
  const int32_t* index;
  int64_t count;

  int64_t operator[](int64_t b) const { return index == nullptr ? b : index[b]; }
};

// Adjacent panels of one matrix.
struct Panels {
  const std::byte* data;  // 64-byte aligned
  int64_t panel_bytes;
  int64_t cols;  // K, of the whole matrix: the layout depends on it
  int64_t num_panels;
};

// One panel with a byte for each weight, over columns [begin, begin + cols).
//
// Shapes: values [cols / 4][kPanelRows][4]: byte 4 r + i of vector t is weight column 4 t + i of
//         row r, with 128 added; scales and minima [cols / run_length][kPanelRows]: W and M.
struct ExpandedPanel {
  int64_t begin;  // a multiple of 32
  int64_t cols;   // a multiple of 32
  int run_length;
  bool has_minimum;  // then weights are in [0, 63]
  uint8_t* values;   // 64-byte aligned, as are the others
  float* scales;
  float* minima;
  // Weights are in [-2^(value_bits - 1), 2^(value_bits - 1)), or with a minimum in
  // [0, 2^value_bits). The fewer, the more products a level without VNNI adds in 16 bits; the
  // results do not depend on it. PanelFormat::value_bits() is that of a format.
  int value_bits = 8;
};

// Dot products of packed panels with any number of activation rows.
// Writes all kPanelRows results of every panel: r = kPanelRows * panel + row.
// REQUIRES: borders are multiples of 32.
using DotPanelsFunction = void (*)(const Panels& w, const QuantizedRows& x,
                                   const RowSelection& x_rows, const Segments& segments,
                                   const DotOutput& out);

// Expands one packed panel for the columns of `out`.
using ExpandPanelFunction = void (*)(const std::byte* panel, int64_t cols,
                                     const ExpandedPanel& out);

// The plain C++ form, for any level. REQUIRES: HasPanels(dtype).
ExpandPanelFunction PortableExpandPanel(DType dtype);

// Dot products of `num_panels` expanded panels (of the same columns and run length) with any number
// of activation rows. Writes all kPanelRows results of every panel. Segments lie inside the
// expanded columns.
using DotExpandedFunction = void (*)(const ExpandedPanel* panels, int64_t num_panels,
                                     const QuantizedRows& x, const RowSelection& x_rows,
                                     const Segments& segments, const DotOutput& out);

// Stored float rows: row r at data + r * row_bytes, starting at column 0.
// REQUIRES: 64 bytes past the last row are readable.
struct StoredRows {
  const std::byte* data;
  int64_t row_bytes;
  int64_t num_rows;
};

// Dot products of stored float rows with selected activation rows.
using DotFloatFunction = void (*)(const StoredRows& w, MatrixView<const float> x,
                                  const RowSelection& x_rows, const Segments& segments,
                                  const DotOutput& out);

// Quantises one row of `cols` values into row `row` of `out`.
using QuantizeFunction = void (*)(const float* values, const QuantizedRows& out, int64_t row);

// Entries of a type; null = none: for a float type the first two, for one without panels both
// (matmul.cc then expands through quant/), and for a block format the last.
struct FormatFunctions {
  DotPanelsFunction dot_panels = nullptr;
  ExpandPanelFunction expand_panel = nullptr;
  DotFloatFunction dot_float = nullptr;
};

struct LevelFunctions {
  FormatFunctions (*format)(DType dtype);
  DotExpandedFunction dot_expanded;
  QuantizeFunction quantize;
};

// One table a level; each is defined in a file built for that level.
extern const LevelFunctions kScalarFunctions;
extern const LevelFunctions kAvx2Functions;
extern const LevelFunctions kAvxVnniFunctions;
extern const LevelFunctions kAvx512VnniFunctions;

// Returns the table of a level. REQUIRES: this machine runs the level.
const LevelFunctions& FunctionsOf(CpuLevel level);

}  // namespace switchyard::kernels::cpu
