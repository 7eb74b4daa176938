// What every part of the forward pass works on during one step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "comm/communicator.h"
#include "kernels/backend.h"
#include "placement/rank_share.h"
#include "worker/cache/kv_cache.h"
#include "worker/cache/recurrent_state.h"
#include "worker/experts/residency_table.h"
#include "worker/forward/activations.h"
#include "worker/forward/batch.h"
#include "worker/ledger.h"
#include "worker/model_weights.h"

namespace switchyard::worker {

// Where the experts are during one step, and what counts their uses.
struct StepExperts {
  const ResidencyTable& table;
  absl::Span<uint32_t> uses;  // [num_layers, num_experts], grows

  // The weights of a layer as its stage takes them.
  kernels::MoeWeights WeightsOf(const LayerWeights& weights, int layer) const {
    kernels::MoeWeights moe = weights.moe;
    moe.resident_slots = table.slots(layer);
    moe.use_counts = uses.data() + static_cast<size_t>(layer) * table.num_experts();
    return moe;
  }
};

struct StepContext {
  kernels::Backend& backend;
  Activations& activations;
  const KvCache& kv_cache;
  const RecurrentState& state;
  Ledger& ledger;
  const Batch& batch;
  // Arguments of the stages, filled anew for each layer: the same rows, other states.
  std::vector<kernels::AttentionSequence>& attention_sequences;
  std::vector<kernels::DeltaNetSequence>& delta_net_sequences;
  std::vector<kernels::ConvSequence>& conv_sequences;
  // The other ranks; null = there are none.
  comm::Communicator* ranks;
  const placement::RankShare& share;
  const StepExperts& experts;
  bool check_ranks;  // compare what all ranks should have alike
};

}  // namespace switchyard::worker
