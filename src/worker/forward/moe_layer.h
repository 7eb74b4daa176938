// The mixture-of-experts sublayer: router, routed experts, shared expert.
#pragma once

#include <cstdint>

#include "worker/forward/step_context.h"
#include "worker/model_weights.h"

namespace switchyard::worker {

// Computes the sublayer's output of the first `num_rows` rows.
// Shapes: reads activations.sublayer_input, writes activations.sublayer_output,
//         [num_rows, hidden_size].
void RunMoeLayer(const LayerWeights& weights, int64_t num_rows, StepContext& step);

}  // namespace switchyard::worker
