// The attention sublayer: projections, choice of blocks, attention, output projection.
#pragma once

#include "worker/forward/step_context.h"
#include "worker/model_weights.h"

namespace switchyard::worker {

// Computes the sublayer's output of all rows of the step and extends the KV cache by them.
// Shapes: reads activations.sublayer_input, writes activations.sublayer_output, [T, hidden_size].
void RunAttentionLayer(const LayerWeights& weights, int layer, StepContext& step);

}  // namespace switchyard::worker
