// Gated delta net, always as a recurrence.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "base/tensor_view.h"
#include "kernels/reference/workspace.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::reference {

// As Backend::GatedDeltaNet(). The state is rounded to float after every token, as it is between
// steps, so results do not depend on where steps end, not even on chunk borders.
// Source: Yang et al., 2024, arXiv:2412.06464, equation 10.
void GatedDeltaNet(const DeltaNetWeights& w, const DeltaNetShape& shape,
                   absl::Span<const DeltaNetSequence> sequences, MatrixView<const float> u,
                   MatrixView<float> y, Workspace& workspace);

int64_t GatedDeltaNetWorkspaceBytes(const StepLimits& limits);

}  // namespace switchyard::kernels::reference
