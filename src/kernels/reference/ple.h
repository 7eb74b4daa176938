// N-gram per-layer embedding, from gathered table rows to the wide residual.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "base/tensor_view.h"
#include "kernels/reference/workspace.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::reference {

// As Backend::Ple().
void Ple(const PleWeights& w, const PleShape& shape, absl::Span<const ConvSequence> sequences,
         MatrixView<const float> e, MatrixView<float> h, Workspace& workspace);

int64_t PleWorkspaceBytes(const StepLimits& limits);

}  // namespace switchyard::kernels::reference
