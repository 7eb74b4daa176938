#include "worker/forward/moe_layer.h"

namespace switchyard::worker {

void RunMoeLayer(const LayerWeights& weights, int64_t num_rows, StepContext& step) {
  Activations& activations = step.activations;
  const MatrixView<float> input = activations.sublayer_input.Rows(0, num_rows);
  const MatrixView<int32_t> experts = activations.experts.Rows(0, num_rows);
  const MatrixView<float> expert_weights = activations.expert_weights.Rows(0, num_rows);
  step.backend.Router(step.ledger[v1::STAGE_ROUTER], *weights.router, input, experts,
                      expert_weights);
  step.backend.Experts(step.ledger[v1::STAGE_EXPERTS_DEVICE], weights.moe, input, experts,
                       expert_weights, activations.sublayer_output.Rows(0, num_rows));
}

}  // namespace switchyard::worker
