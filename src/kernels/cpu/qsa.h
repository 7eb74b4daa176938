// Sparse attention: which blocks a row may read.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "base/tensor_view.h"
#include "kernels/cpu/stage_context.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu {

// Takes the buffers of QsaSelect() for a step of these sizes.
void MeasureQsaSelect(Scratch& scratch, int num_threads, const StepLimits& limits);

// As Backend::QsaSelect. No fork-join while every row may read everything, one with many rows, two
// with few.
void QsaSelect(const StageContext& context, const AttentionShape& shape, const KvLayer& cache,
               absl::Span<const AttentionSequence> sequences, MatrixView<const float> index_query,
               const QsaSelection& selection);

// Counters that TopBlocks() works with.
inline constexpr int64_t kTopBlocksCounters = 2048;

// Writes the indices of the `k` largest scores, ascending; of equal scores the lower indices.
// Scores are >= 0.
//
// Shapes: scores [n], counters [kTopBlocksCounters], top [k]; k < n.
void TopBlocks(const float* scores, int64_t n, int64_t k, int32_t* counters, int32_t* top);

}  // namespace switchyard::kernels::cpu
