// Products of synthetic matrices, as `bench gemv` and `bench gemm` time them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "app/bench/timed_pool.h"
#include "base/arena.h"
#include "base/dtype.h"
#include "kernels/backend.h"
#include "kernels/cpu/activation_rows.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/matmul.h"

namespace switchyard::app {

struct MatrixShape {
  int64_t rows = 0;
  int64_t cols = 0;  // K
};

// Reads "640x2560", rows first. Errors: kInvalidArgument.
absl::StatusOr<MatrixShape> ParseMatrixShape(const std::string& text);

// Formats that the cpu backend multiplies with in registers.
std::vector<DType> KernelFormats();

// Whether rows of `shape` are whole blocks of `dtype`.
bool FitsFormat(const MatrixShape& shape, DType dtype);

// Equal matrices of random blocks, in the layout of the cpu backend.
class MatrixSet {
 public:
  // Loads `count` of them. All have the same content, each in memory of its own.
  static absl::StatusOr<MatrixSet> Create(DType dtype, const MatrixShape& shape, int64_t count,
                                          int num_threads);

  int64_t count() const { return count_; }
  DType dtype() const { return dtype_; }
  const MatrixShape& shape() const { return shape_; }
  int64_t memory_bytes() const { return memory_bytes_; }  // of one matrix
  int64_t file_bytes() const;                             // of one matrix

  kernels::cpu::WeightMatrix matrix(int64_t i) const;

  // Values of row `row`. Shapes: out [cols].
  void DecodeRow(int64_t row, absl::Span<float> out) const;

 private:
  MatrixSet() = default;

  DType dtype_ = DType::kF32;
  MatrixShape shape_;
  int64_t count_ = 0;
  int64_t memory_bytes_ = 0;
  std::vector<std::byte> stored_;  // one matrix as in a file
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<kernels::Weight> weight_;
};

// Random rows of activations, in both forms.
class ActivationSet {
 public:
  static absl::StatusOr<ActivationSet> Create(int64_t rows, int64_t cols);

  const kernels::cpu::ActivationRows& rows() const { return rows_; }

  // What the kernels see of element (row, col): rounded to 8 bits where the weights are blocks.
  float Value(DType weights, int64_t row, int64_t col) const;

 private:
  explicit ActivationSet(Arena arena) : arena_(std::move(arena)) {}

  Arena arena_;
  kernels::cpu::ActivationRows rows_;
};

// Times products of one set with up to `max_rows` activation rows.
class ProductRun {
 public:
  // Both must outlive it.
  ProductRun(const MatrixSet& matrices, const ActivationSet& activations, int64_t max_rows);

  // Whether products are what a plain evaluation says, for every `row_step`-th row of the first
  // matrix and all of `num_rows` activation rows.
  //
  // Errors: kInternal.
  absl::Status Check(kernels::cpu::CpuLevel level, int64_t num_rows, int64_t row_step);

  // Multiplies all matrices, or as many times the first one, with `num_rows` activation rows in one
  // stage of tasks like those of the product.
  StageTime Run(TimedPool& pool, kernels::cpu::CpuLevel level, int64_t num_rows,
                bool only_first_matrix);

  // All products of the last Run() must have the same bits, since all matrices are equal, and those
  // of the last Check().
  //
  // Errors: kInternal.
  absl::Status CheckLastRun(int64_t num_rows) const;

 private:
  const MatrixSet& matrices_;
  const ActivationSet& activations_;
  int64_t max_rows_;
  std::vector<float> products_;  // [matrix, activation row, matrix row]
  std::vector<float> checked_;   // [activation row, matrix row]
  std::vector<kernels::cpu::MatMulScratch> scratch_;
};

}  // namespace switchyard::app
