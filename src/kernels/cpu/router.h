// Which experts a token goes to.
#pragma once

#include <cstdint>

#include "base/tensor_view.h"
#include "kernels/cpu/stage_context.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu {

// Takes the buffers of Router() for a step of these sizes.
void MeasureRouter(Scratch& scratch, const StepLimits& limits);

// As Backend::Router. One fork-join. Returns the bytes of weights read.
int64_t Router(const StageContext& context, const Weight& router, MatrixView<const float> u,
               MatrixView<int32_t> experts, MatrixView<float> weights);

}  // namespace switchyard::kernels::cpu
