// Routed experts and the shared expert.
#pragma once

#include <cstdint>

#include "base/tensor_view.h"
#include "kernels/reference/workspace.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::reference {

// As Backend::Experts(). Returns the bytes of the weights that were read.
int64_t Experts(const MoeWeights& w, MatrixView<const float> u, MatrixView<const int32_t> experts,
                MatrixView<const float> weights, MatrixView<float> y, Workspace& workspace);

int64_t ExpertsWorkspaceBytes(const StepLimits& limits);

}  // namespace switchyard::kernels::reference
