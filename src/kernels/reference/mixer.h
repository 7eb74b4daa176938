// Hyper-connections: several residual streams, mixed into a sublayer and back.
#pragma once

#include <cstdint>

#include "base/tensor_view.h"
#include "kernels/reference/workspace.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::reference {

// As Backend::HcMix() and Backend::HcCombine().
void HcMix(const MixerWeights& w, MatrixView<const float> h, MatrixView<float> u,
           MatrixView<float> inject, Workspace& workspace);
void HcCombine(MatrixView<const float> inject, MatrixView<const float> y, MatrixView<float> h);

int64_t HcMixWorkspaceBytes(const StepLimits& limits);

}  // namespace switchyard::kernels::reference
