// Softmax attention with paged keys and values; the projections that feed it.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "base/tensor_view.h"
#include "kernels/reference/workspace.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::reference {

// As Backend::AttentionQkv() and Backend::Attention().
void AttentionQkv(const AttentionWeights& w, const AttentionShape& shape, const KvLayer& cache,
                  absl::Span<const AttentionSequence> sequences, MatrixView<const float> u,
                  const AttentionInputs& out, Workspace& workspace);
void Attention(const AttentionShape& shape, const KvLayer& cache,
               absl::Span<const AttentionSequence> sequences, const AttentionInputs& inputs,
               const QsaSelection& selection, MatrixView<float> out, Workspace& workspace);

int64_t AttentionQkvWorkspaceBytes(const StepLimits& limits);
int64_t AttentionWorkspaceBytes(const StepLimits& limits);

}  // namespace switchyard::kernels::reference
