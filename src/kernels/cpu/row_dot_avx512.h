// Functions of the AVX-512 level that lie in a file of their own. Private to the level.
#pragma once

#include "kernels/cpu/row_dot.h"

namespace switchyard::kernels::cpu {

// DotFloatFunction for weights of each float type.
void DotF32Avx512(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                  const Segments& segments, const DotOutput& out);
void DotF16Avx512(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                  const Segments& segments, const DotOutput& out);
void DotBF16Avx512(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                   const Segments& segments, const DotOutput& out);

// QuantizeFunction.
void QuantizeRowAvx512(const float* values, const QuantizedRows& out, int64_t row);

}  // namespace switchyard::kernels::cpu
