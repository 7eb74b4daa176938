// Exact decoding of rows of any stored type.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace switchyard::kernels {

// Decodes a row to binary32, bit for bit by the formula of its format.
//
// Shapes:   row [RowBytes(dtype, num_elements)] bytes, not aligned; out [num_elements].
// Threads:  any.
// REQUIRES: num_elements is a multiple of the format's block length.
void DequantizeRow(DType dtype, const std::byte* row, int64_t num_elements, float* out);

// Whether rows of this type expand into integers and factors: all but F32, F16 and BF16.
bool IsBlockFormat(DType dtype);

// Whether the elements of this type are scale * value + minimum.
bool HasMinimum(DType dtype);

// Splits a row of a block format into integers and factors (block.h).
//
// Shapes:   row as above; values [num_elements]; scales and minima [num_elements / 16]. `minima` is
//           left alone if the format has none.
// REQUIRES: IsBlockFormat(dtype); num_elements is a multiple of the format's block length.
void ExpandRow(DType dtype, const std::byte* row, int64_t num_elements, int8_t* values,
               float* scales, float* minima);

}  // namespace switchyard::kernels
