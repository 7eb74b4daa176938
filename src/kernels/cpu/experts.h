// Routed and shared experts.
#pragma once

#include <cstdint>

#include "base/tensor_view.h"
#include "kernels/cpu/stage_context.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu {

// Takes the buffers of Experts() for a step of these sizes.
void MeasureExperts(Scratch& scratch, int num_threads, const StepLimits& limits);

// As Backend::Experts. Two fork-joins: gate, up and activation of all chosen experts and the shared
// one, a task for each expert and some inner rows; then down with the weighted sum, a task for some
// elements of the output. Decode and prefill run the same code: rows are sorted by expert, and an
// output element is accumulated expert by expert whatever the number of rows. Returns the bytes of
// weights read.
int64_t Experts(const StageContext& context, const MoeWeights& w, MatrixView<const float> u,
                MatrixView<const int32_t> experts, MatrixView<const float> weights,
                MatrixView<float> y);

}  // namespace switchyard::kernels::cpu
