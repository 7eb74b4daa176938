// Linear attention with the gated delta rule.
#pragma once

#include "absl/types/span.h"

#include "base/tensor_view.h"
#include "kernels/cpu/stage_context.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu {

// Takes the buffers of GatedDeltaNet() for a step of these sizes.
void MeasureGatedDeltaNet(Scratch& scratch, int num_threads, const StepLimits& limits);

// As Backend::GatedDeltaNet. Three fork-joins: all projections with the convolution; the delta rule
// with the gated norm, a task for each sequence and value head; the output projection. Returns the
// bytes of weights read.
//
// REQUIRES: the head size is a multiple of 8.
int64_t GatedDeltaNet(const StageContext& context, const DeltaNetWeights& w,
                      const DeltaNetShape& shape, absl::Span<const DeltaNetSequence> sequences,
                      MatrixView<const float> u, MatrixView<float> y);

}  // namespace switchyard::kernels::cpu
