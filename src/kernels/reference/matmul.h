// Products of rows with the rows of a weight, accumulated in double.
#pragma once

#include <cstdint>

#include "base/tensor_view.h"
#include "kernels/reference/weight.h"
#include "kernels/reference/workspace.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::reference {

// Which slab of a weight: one in memory (with tiers, a slot of the fast one), or one of the slow
// tier.
struct SlabPlace {
  SlabPlace(int64_t slab_index, bool is_in_fast_tier = true)
      : slab(slab_index), in_fast_tier(is_in_fast_tier) {}
  int64_t slab;
  bool in_fast_tier;
};

// y = x w^T with slab `slab` of `w`; each element is one Dot().
//
// Shapes: x [T, cols], y [T, rows]. Out is float or double.
template <typename Out>
void MatMul(const Weight& w, SlabPlace slab, MatrixView<const double> x, MatrixView<Out> y,
            Workspace& workspace);

// The parts of y = x w^T that each virtual shard of the columns contributes.
//
// Shapes: x [T, cols], parts [4 * T, rows]: part s of row t is row s * T + t.
// REQUIRES: the shards cover all columns.
void MatMulParts(const Weight& w, SlabPlace slab, const ShardBorders& borders,
                 MatrixView<const double> x, MatrixView<double> parts, Workspace& workspace);

// y = x w^T as (part 0 + part 1) + (part 2 + part 3). Shapes: x [T, cols], y [T, rows].
void MatMulSharded(const Weight& w, const ShardBorders& borders, MatrixView<const double> x,
                   MatrixView<float> y, Workspace& workspace);

// Bytes of workspace of each of the three for weights of up to `max_cols` columns and `max_rows`
// rows and `num_tokens` tokens. The last two matter to MatMulSharded() only.
int64_t MatMulWorkspaceBytes(int64_t max_cols, int64_t max_rows = 0, int64_t num_tokens = 0);

// `x` in double. Takes T * cols doubles.
MatrixView<const double> Widen(MatrixView<const float> x, Workspace& workspace);

}  // namespace switchyard::kernels::reference
