// What all block-format levels of an instruction set share: products with float rows, and
// quantisation. Private to kernels/cpu.
#pragma once

#include "kernels/cpu/panel_dot.h"

namespace switchyard::kernels::cpu {

// DotFloatFunction for weights of each float type.
void DotF32Avx2(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                const Segments& segments, const DotOutput& out);
void DotF16Avx2(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                const Segments& segments, const DotOutput& out);
void DotBF16Avx2(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                 const Segments& segments, const DotOutput& out);

void DotF32Avx512(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                  const Segments& segments, const DotOutput& out);
void DotF16Avx512(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                  const Segments& segments, const DotOutput& out);
void DotBF16Avx512(const StoredRows& w, MatrixView<const float> x, const RowSelection& x_rows,
                   const Segments& segments, const DotOutput& out);

// QuantizeFunction.
void QuantizeRowAvx2(const float* values, const QuantizedRows& out, int64_t row);
void QuantizeRowAvx512(const float* values, const QuantizedRows& out, int64_t row);

}  // namespace switchyard::kernels::cpu
