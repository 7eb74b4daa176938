// The mixture-of-experts sublayer: router, routed experts, shared expert.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "worker/forward/step_context.h"
#include "worker/model_weights.h"

namespace switchyard::worker {

// Computes the sublayer's output of the first `num_rows` rows.
// Shapes: reads activations.sublayer_input, writes activations.sublayer_output,
//         [num_rows, hidden_size].
// Errors: those of the communicator.
absl::Status RunMoeLayer(const LayerWeights& weights, int layer, int64_t num_rows,
                         StepContext& step);

// The part of a rank that has nothing but experts: takes input and chosen experts from rank 0 and
// adds its part of the sum.
// Errors: those of the communicator.
absl::Status ServeMoeLayer(const LayerWeights& weights, int layer, int64_t num_rows, int64_t top_k,
                           StepContext& step);

}  // namespace switchyard::worker
