// Choice of experts.
#pragma once

#include <cstdint>

#include "base/tensor_view.h"
#include "kernels/reference/workspace.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::reference {

// As Backend::Router().
void Router(const Weight& router, MatrixView<const float> u, MatrixView<int32_t> experts,
            MatrixView<float> weights, Workspace& workspace);

int64_t RouterWorkspaceBytes(const StepLimits& limits);

}  // namespace switchyard::kernels::reference
