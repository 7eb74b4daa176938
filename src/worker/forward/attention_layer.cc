#include "worker/forward/attention_layer.h"

namespace switchyard::worker {
namespace {

void BindSequences(int layer, StepContext& step) {
  step.attention_sequences.clear();
  for (const BatchSequence& rows : step.batch.sequences) {
    kernels::AttentionSequence sequence;
    static_cast<kernels::SequenceRows&>(sequence) = rows;
    sequence.pages = rows.pages;
    sequence.index_ring = step.state.index_ring(rows.slot, layer);
    step.attention_sequences.push_back(sequence);
  }
}

}  // namespace

void RunAttentionLayer(const LayerWeights& weights, int layer, StepContext& step) {
  BindSequences(layer, step);
  const kernels::AttentionShape& shape = weights.attention_shape;
  const kernels::KvLayer& cache = step.kv_cache.layer(layer);
  Activations& activations = step.activations;
  const int64_t t = step.batch.num_rows();
  // A rank may have some of the heads only.
  const auto of_heads = [&](MatrixView<float> all) {
    return MatrixView<float>(all.data, t, int64_t{shape.num_heads} * shape.head_dim);
  };

  kernels::AttentionInputs inputs;
  inputs.query = of_heads(activations.query);
  if (shape.output_gate) inputs.gate = of_heads(activations.query_gate);
  kernels::QsaSelection selection;
  if (shape.qsa_ratio != 0) {
    inputs.index_query = activations.index_query.Rows(0, t);
    selection.blocks = activations.block_choice.Rows(0, t);
    selection.blocks.cols = shape.qsa_budget / shape.qsa_ratio;
    selection.counts = absl::MakeSpan(activations.block_counts.data, static_cast<size_t>(t));
  }
  kernels::Backend& backend = step.backend;
  kernels::LedgerSlot& ledger = step.ledger[v1::STAGE_ATTENTION];
  backend.AttentionQkv(ledger, weights.attention, shape, cache, step.attention_sequences,
                       activations.sublayer_input.Rows(0, t), inputs);
  if (shape.qsa_ratio != 0) {
    backend.QsaSelect(step.ledger[v1::STAGE_QSA_SELECT], shape, cache, step.attention_sequences,
                      inputs.index_query, selection);
  }
  backend.Attention(ledger, shape, cache, step.attention_sequences, inputs, selection,
                    of_heads(activations.attention));
  backend.MatMulSharded(ledger, *weights.attention_output, weights.attention_output_shards,
                        of_heads(activations.attention), activations.sublayer_output.Rows(0, t));
}

}  // namespace switchyard::worker
