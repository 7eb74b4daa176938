// The n-gram per-layer embedding.
#pragma once

#include "absl/types/span.h"

#include "base/tensor_view.h"
#include "kernels/cpu/stage_context.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu {

// Takes the buffers of Ple() for a step of these sizes.
void MeasurePle(Scratch& scratch, int num_threads, const StepLimits& limits);

// As Backend::Ple. Returns the bytes of weights read.
int64_t Ple(const StageContext& context, const PleWeights& w, const PleShape& shape,
            absl::Span<const ConvSequence> sequences, MatrixView<const float> e,
            MatrixView<float> h);

}  // namespace switchyard::kernels::cpu
