// Rows of a sequence that outlive a step: the committed tail, the pending rows, the step's rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/tensor_view.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::reference {

// The inputs of one sequence's causal convolution as one run of rows: `tail_rows` committed ones,
// the accepted pending ones, then the step's.
class SequenceWindow {
 public:
  // Shapes: tail [tail_rows, step.cols], pending [kMaxProvisionalRows, step.cols],
  //         step [rows.num_rows, cols]: the sequence's own rows.
  SequenceWindow(const SequenceRows& rows, int tail_rows, float* tail, float* pending,
                 MatrixView<const float> step)
      : rows_(rows), tail_rows_(tail_rows), tail_(tail), pending_(pending), step_(step) {
    SWITCHYARD_DCHECK(rows.num_replay >= 0 && rows.num_replay <= kMaxProvisionalRows);
    SWITCHYARD_DCHECK(rows.num_committed >= 0 && rows.num_committed <= rows.num_rows);
    // More would overrun the memory of the pending rows.
    SWITCHYARD_CHECK(rows.num_rows - rows.num_committed <= kMaxProvisionalRows);
  }

  // Row `index`, counted from the first row after the tail: the replayed rows, then the step's;
  // down to -tail_rows for the tail.
  const float* row(int64_t index) const {
    if (index < 0) return tail_ + (tail_rows_ + index) * step_.cols;
    if (index < rows_.num_replay) return pending_ + index * step_.cols;
    return step_.row(index - rows_.num_replay);
  }

  // Causal depthwise convolution that ends at row `newest`; tap `num_taps - 1` multiplies that row,
  // each tap before it a row `dilation` older.
  // Shapes: taps [cols, num_taps], out [cols].
  void Convolve(const float* taps, int num_taps, int dilation, int64_t newest, double* out) const {
    std::fill_n(out, step_.cols, 0.0);
    for (int i = 0; i < num_taps; ++i) {
      const float* x = row(newest - int64_t{num_taps - 1 - i} * dilation);
      for (int64_t c = 0; c < step_.cols; ++c) {
        out[c] += static_cast<double>(taps[c * num_taps + i]) * static_cast<double>(x[c]);
      }
    }
  }

  // Moves the tail on over the replayed and the committed rows and makes the others pending.
  void Commit() {
    const int64_t shift = rows_.num_replay + rows_.num_committed;
    // Ascending: a row of the tail that is read comes after all that were written.
    for (int64_t r = 0; r < tail_rows_ && shift > 0; ++r) {
      std::copy_n(row(r - tail_rows_ + shift), step_.cols, tail_ + r * step_.cols);
    }
    for (int64_t r = rows_.num_committed; r < rows_.num_rows; ++r) {
      std::copy_n(step_.row(r), step_.cols, pending_ + (r - rows_.num_committed) * step_.cols);
    }
  }

 private:
  SequenceRows rows_;
  int tail_rows_;
  float* tail_;
  float* pending_;
  MatrixView<const float> step_;
};

}  // namespace switchyard::kernels::reference
