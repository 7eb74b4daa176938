// Products of stored weight matrices with rows of activations.
//
// Every element of a result is computed in one fixed order over the columns (panel_dot.h): it does
// not depend on the CPU level, the number of activation rows, the row ranges or the threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"

#include "base/tensor_view.h"
#include "base/thread_pool.h"
#include "kernels/cpu/activation_rows.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/shard_segments.h"

namespace switchyard::kernels::cpu {

// A weight matrix: as row panels (panel.h), 64-byte aligned, or as it lies in the file, rows one
// after another, not aligned.
// REQUIRES: at least 64 bytes past the last row are readable (their values do not matter).
struct WeightMatrix {
  DType dtype = DType::kF32;
  const std::byte* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  bool in_panels = false;  // block formats only
};

// Columns of the activations and weights that enter, and where partial sums are cut: partial s
// covers [border[s], border[s + 1]).
// REQUIRES: ascending; at most 64 ranges; multiples of 32 and, without panels, of the weights'
// block
//           length; any columns for F32, F16 and BF16. Empty ranges are allowed and give 0.
using ColumnBorders = absl::Span<const int64_t>;

// Working memory of one thread.
class MatMulScratch {
 public:
  // For matrices of up to `max_cols` columns.
  explicit MatMulScratch(int64_t max_cols);

  std::byte* data() const { return data_.get(); }
  int64_t max_cols() const { return max_cols_; }
  static int64_t Bytes(int64_t max_cols);

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  int64_t max_cols_;
  std::unique_ptr<std::byte[], Free> data_;
};

// Where partial sums go: element (partial s, activation row b, weight row r), with r counted from
// `row_begin`, at data[s * partial_stride + b * row_stride + r].
struct PartialSums {
  float* data = nullptr;
  int64_t row_stride = 0;
  int64_t partial_stride = 0;
};

// Rows of `w` to be multiplied with some rows of `x`: a whole matrix, or the routed rows of one
// expert.
struct MatMulTask {
  WeightMatrix w;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  // Rows of `x` that take part; null = the first `num_x_rows`.
  const int32_t* x_rows = nullptr;
  int64_t num_x_rows = 0;
};

// Computes out[s, b, r] = sum over columns c of partial s of w[row_begin + r, c] * x[x_rows[b], c].
// Runs on the calling thread only.
//
// Threads:  any, each with its own scratch.
// REQUIRES: x has the form that w.dtype needs and x.cols == w.cols; scratch.max_cols() >= w.cols;
//           this machine runs `level`.
void MatMulRows(CpuLevel level, const MatMulTask& task, ColumnBorders borders,
                const ActivationRows& x, PartialSums out, MatMulScratch& scratch);

// Computes y = x w^T over all columns.
//
// Shapes:   w [rows, cols], x [T, cols], y [T, rows].
// Threads:  the pool's; scratch has one entry a thread.
// REQUIRES: as for MatMulRows().
void MatMul(ThreadPool& pool, CpuLevel level, const WeightMatrix& w, const ActivationRows& x,
            MatrixView<float> y, absl::Span<MatMulScratch> scratch);

// Computes y = x w^T with the columns cut into four shards; each element is (p0 + p1) + (p2 + p3)
// of the shards' partial sums. Runs on the calling thread only.
//
// Shapes:   x [T, cols], y [T, row_end - row_begin].
// Threads, REQUIRES: as for MatMulRows(); the shards cover all columns (shard_segments.h).
void MatMulShardedRows(CpuLevel level, const WeightMatrix& w, int64_t row_begin, int64_t row_end,
                       const ShardBorders& shards, const ActivationRows& x, MatrixView<float> y,
                       MatMulScratch& scratch);

// The same for all rows of `w`, on the pool.
void MatMulSharded(ThreadPool& pool, CpuLevel level, const WeightMatrix& w,
                   const ShardBorders& shards, const ActivationRows& x, MatrixView<float> y,
                   absl::Span<MatMulScratch> scratch);

// Quantises row `row` of `x` into row `row` of `out`; all levels give the same bits.
//
// Threads:  any; different rows may run at the same time.
// REQUIRES: x.cols == out.cols.
void QuantizeActivationRow(CpuLevel level, const float* x, const QuantizedRows& out, int64_t row);

// Number of weight rows that one task of a pooled product should take: whole cache lines of the
// result, and about 64 KiB of weights, as far as every thread gets at least one task.
int64_t RowsPerTask(const WeightMatrix& w, int num_threads);

}  // namespace switchyard::kernels::cpu
