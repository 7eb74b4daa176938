// Non-owning views of row-major matrices and of tensors in a file: the arguments of all kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "base/dtype.h"

namespace switchyard {

// `rows` rows of `cols` elements; row r starts at data + r * row_stride (in elements).
template <typename T>
struct MatrixView {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;

  MatrixView() = default;
  MatrixView(T* data, int64_t rows, int64_t cols) : MatrixView(data, rows, cols, cols) {}
  MatrixView(T* data, int64_t rows, int64_t cols, int64_t row_stride)
      : data(data), rows(rows), cols(cols), row_stride(row_stride) {}
  // A view of mutable elements is also one of constant elements.
  template <typename U>
  requires(std::is_same_v<const U, T> && !std::is_same_v<U, T>)
      MatrixView(const MatrixView<U>& other)
      : data(other.data), rows(other.rows), cols(other.cols), row_stride(other.row_stride) {}

  T* row(int64_t r) const {
    SWITCHYARD_DCHECK(r >= 0 && r < rows);
    return data + r * row_stride;
  }
  // The `count` rows from `first` on.
  MatrixView Rows(int64_t first, int64_t count) const {
    SWITCHYARD_DCHECK(first >= 0 && count >= 0 && first + count <= rows);
    return MatrixView(data + first * row_stride, count, cols, row_stride);
  }
};

// A stored tensor of any type: `num_slabs` matrices of `rows` rows of `cols` elements, without
// padding. A vector has one slab and one row; expert tensors have one slab per expert.
struct TensorView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_slabs = 0;
  int64_t rows = 0;
  int64_t cols = 0;

  int64_t row_bytes() const { return RowBytes(dtype, cols); }
  int64_t bytes() const { return num_slabs * rows * row_bytes(); }
  const std::byte* row(int64_t slab, int64_t r) const {
    return data + (slab * rows + r) * row_bytes();
  }
};

}  // namespace switchyard
