// The inner loops of one instruction-set level, behind function pointers. Private to kernels/cpu;
// callers use matmul.h.
//
// All levels compute the same bits. The arithmetic of a dot product over columns [begin, end):
//
// Block formats. Columns are taken in groups of 32 from `begin` on; group g has integers w (the
// weights), q (the activations), weight factors scale[2], minimum[2] for its halves of 16 columns,
// and an activation scale a. There are 16 float lanes `acc`, and 16 lanes `low` for formats with a
// minimum, all zero at first. For g = 0, 1, ... in this order:
//   lane l of 8:   acc[8 * (g % 2) + l] = fma(float(w[4l..4l+3] . q[4l..4l+3]),
//                                            scale[l / 4] * a, same)
//   half h of 2:   low[(2 * g + h) % 16] = fma(minimum[h], half_sum[2 * g + h], same)
// The integer sums of four are exact (below 2^24), so how they are made does not matter. Then
//   s[l] = acc[l] + acc[l + 8], l < 8; with minimum: s[l] += low[l] + low[l + 8]
//   result = ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7)).
//
// F32, F16, BF16. Activations are binary32; column c goes to lane (c - begin) % 16:
//   acc[lane] = fma(weight, x, acc[lane]), columns ascending, and the same final sum.
//
// Nothing depends on the number of rows of either operand.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/cpu/activation_rows.h"
#include "kernels/cpu/cpu_features.h"

namespace switchyard::kernels::cpu {

// Results: element (segment s, activation row b, weight row r) at
// data[s * segment_stride + b * row_stride + r].
struct DotOutput {
  float* data;
  int64_t row_stride;
  int64_t segment_stride;
};

// Column ranges: segment s is [border[s], border[s + 1]).
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

// Some weight rows as integers and factors (quant/block.h), over columns [begin, begin + stride).
//
// Shapes: values [num_rows, stride]; scales and minima [num_rows, stride / 16].
struct ExpandedRows {
  int64_t num_rows;
  int64_t begin;     // column of the first value
  int64_t stride;    // columns, a multiple of 64
  bool has_minimum;  // then values are in [0, 127]
  int8_t* values;
  float* scales;
  float* minima;
};

// Stored weight rows: row r at data + r * row_bytes, starting at column 0.
// REQUIRES: 64 bytes past the last row are readable.
struct StoredRows {
  const std::byte* data;
  int64_t row_bytes;
  int64_t num_rows;
};

// Dot products of stored rows with one activation row, decoding in registers.
using DotStoredFunction = void (*)(const StoredRows& w, const QuantizedRows& x, int64_t x_row,
                                   const Segments& segments, const DotOutput& out);

// Fills `out` for its columns; writes values, scales and minima, columns past `end` undefined.
using ExpandFunction = void (*)(const StoredRows& w, int64_t end, const ExpandedRows& out);

// Dot products of expanded rows with selected activation rows.
using DotExpandedFunction = void (*)(const ExpandedRows& w, const QuantizedRows& x,
                                     const RowSelection& x_rows, const Segments& segments,
                                     const DotOutput& out);

// Dot products of stored float rows with selected activation rows.
using DotFloatFunction = void (*)(const StoredRows& w, MatrixView<const float> x,
                                  const RowSelection& x_rows, const Segments& segments,
                                  const DotOutput& out);

// Quantises one row of `cols` values into row `row` of `out`.
using QuantizeFunction = void (*)(const float* values, const QuantizedRows& out, int64_t row);

// Entries of a type: null = not available at this level, use the general way.
struct FormatFunctions {
  DotStoredFunction dot_stored = nullptr;
  ExpandFunction expand = nullptr;
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
extern const LevelFunctions kAvx512VnniFunctions;

// Returns the table of a level. REQUIRES: this machine runs the level.
const LevelFunctions& FunctionsOf(CpuLevel level);

}  // namespace switchyard::kernels::cpu
