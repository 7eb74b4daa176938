#include "worker/forward/delta_net_layer.h"

namespace switchyard::worker {

void RunDeltaNetLayer(const LayerWeights& weights, int layer, StepContext& step) {
  step.delta_net_sequences.clear();
  for (const BatchSequence& rows : step.batch.sequences) {
    kernels::DeltaNetSequence sequence;
    static_cast<kernels::SequenceRows&>(sequence) = rows;
    step.state.Bind(rows.slot, layer, sequence);
    step.delta_net_sequences.push_back(sequence);
  }
  const int64_t t = step.batch.num_rows();
  step.backend.GatedDeltaNet(step.ledger[v1::STAGE_DELTA_NET], weights.delta_net,
                             weights.delta_net_shape, step.delta_net_sequences,
                             step.activations.sublayer_input.Rows(0, t),
                             step.activations.sublayer_output.Rows(0, t));
}

}  // namespace switchyard::worker
