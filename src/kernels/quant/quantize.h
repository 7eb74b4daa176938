// Quantisers for what this program itself writes: KV caches and synthetic tensors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace switchyard::kernels {

// Encodes a row as F32, F16, BF16 or Q8_0.
//
// F16 and BF16 round to nearest, ties to even. Q8_0, for each 32 elements: d = max|x| / 127,
// q = x * (1 / d) rounded half away from zero, then d is rounded to half.
//
// Shapes:   row [num_elements]; out [RowBytes(dtype, num_elements)] bytes, need not be aligned.
// Threads:  any.
// REQUIRES: `dtype` is one of the four; num_elements is a multiple of its block length.
// Source:   ggml (MIT licence), quantize_row_q8_0_ref.
void QuantizeRow(DType dtype, const float* row, int64_t num_elements, std::byte* out);

}  // namespace switchyard::kernels
