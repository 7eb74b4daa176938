// The loaded weights of a model, as the stages of a backend take them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/stage_types.h"
#include "model/model_spec.h"

namespace switchyard::worker {

struct LayerWeights {
  model::LayerKind kind = model::LayerKind::kAttention;
  bool is_here = true;    // else the layer is another rank's
  bool has_dense = true;  // else the rank has nothing but experts of it
  kernels::MixerWeights mixer;
  // Of an attention layer.
  kernels::AttentionWeights attention;
  kernels::AttentionShape attention_shape;
  const kernels::Weight* attention_output = nullptr;
  kernels::ShardBorders attention_output_shards;
  // Of a delta net layer.
  kernels::DeltaNetWeights delta_net;
  kernels::DeltaNetShape delta_net_shape;
  // Of every layer.
  kernels::MixerWeights moe_mixer;
  const kernels::Weight* router = nullptr;
  kernels::MoeWeights moe;
  std::vector<int32_t> expert_slots;  // moe.expert_slots points here
  // Matrices of the routed experts that have tiers, for Backend::LoadSlab(); all of them or none.
  std::vector<kernels::Weight*> tiered_experts;

  // Whether this rank computes this kind of layer.
  bool has_attention() const {
    return is_here && has_dense && kind == model::LayerKind::kAttention;
  }
  bool has_delta_net() const { return is_here && has_dense && kind == model::LayerKind::kDeltaNet; }
};

struct ModelWeights {
  const kernels::Weight* token_embedding = nullptr;
  const kernels::Weight* output = nullptr;  // == token_embedding if tied
  kernels::MixerWeights final_mixer;
  std::vector<LayerWeights> layers;
  kernels::PleWeights ple;  // of the layer that spec.ple names
  kernels::PleShape ple_shape;
  bool has_ple() const { return ple.key != nullptr; }
  std::vector<std::unique_ptr<kernels::Weight>> owned;  // all of the above, each tensor once
};

// The weights that one decoded token is multiplied with: all of each dense tensor, and as many
// experts as a token chooses on average of those that are here. Rows gathered from tables are left
// out; a tied embedding counts as output.
struct TokenWeights {
  int64_t memory_bytes = 0;  // in the backend's layout
  int64_t vector_bytes = 0;  // of these: tensors of one row (norms, biases), which not all stages
                             // count as weights
  int64_t file_bytes = 0;    // as stored in the file
  int64_t num_parameters = 0;
  int64_t num_output_parameters = 0;  // of these: those of the output matrix
};

TokenWeights TokenWeightsOf(const ModelWeights& weights, const model::MoeSpec& moe);

}  // namespace switchyard::worker
