// Sparse attention by blocks: index keys, block keys and the choice of blocks.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "base/tensor_view.h"
#include "kernels/reference/workspace.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::reference {

// Puts the raw index key of a token into its sequence's ring and, if the token completes a block,
// writes that block's key: rope(rms(mean of the raw keys)) at the position of its first token.
//
// Shapes: index_key [index_head_dim].
void StoreIndexKey(const AttentionWeights& w, const AttentionShape& shape, const KvLayer& cache,
                   const AttentionSequence& sequence, int64_t position, const double* index_key,
                   Workspace& workspace);

// As Backend::QsaSelect().
void QsaSelect(const AttentionShape& shape, const KvLayer& cache,
               absl::Span<const AttentionSequence> sequences, MatrixView<const float> index_query,
               const QsaSelection& selection, Workspace& workspace);

int64_t StoreIndexKeyWorkspaceBytes(const StepLimits& limits);
int64_t QsaSelectWorkspaceBytes(const StepLimits& limits);

}  // namespace switchyard::kernels::reference
