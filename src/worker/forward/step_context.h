// What every part of the forward pass works on during one step.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "kernels/backend.h"
#include "placement/rank_share.h"
#include "worker/cache/kv_cache.h"
#include "worker/cache/recurrent_state.h"
#include "worker/forward/activations.h"
#include "worker/forward/batch.h"
#include "worker/ledger.h"

namespace switchyard::worker {

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
};

}  // namespace switchyard::worker
