// Hyper-connections: the wide residual to a sublayer's input and back.
#pragma once

#include "base/tensor_view.h"
#include "kernels/cpu/stage_context.h"
#include "kernels/ledger_slot.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu {

// Takes the buffers of HcMix() for a step of these sizes.
void MeasureHcMix(Scratch& scratch, int num_threads, const StepLimits& limits);

// As Backend::HcMix. Two fork-joins: the projections down and inject of the normalised streams;
// then, over ranges of elements, the projection up with gates and mean. Returns the bytes of
// weights read.
int64_t HcMix(const StageContext& context, const MixerWeights& w, MatrixView<const float> h,
              MatrixView<float> u, MatrixView<float> inject);

// As Backend::HcCombine.
void HcCombine(const StageContext& context, MatrixView<const float> inject,
               MatrixView<const float> y, MatrixView<float> h);

}  // namespace switchyard::kernels::cpu
