// The gated delta net sublayer.
#pragma once

#include "worker/forward/step_context.h"
#include "worker/model_weights.h"

namespace switchyard::worker {

// Computes the sublayer's output of all rows of the step and advances the sequences' states.
// Shapes: reads activations.sublayer_input, writes activations.sublayer_output, [T, hidden_size].
void RunDeltaNetLayer(const LayerWeights& weights, int layer, StepContext& step);

}  // namespace switchyard::worker
