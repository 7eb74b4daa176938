// An attention layer run by a backend over the steps of a sequence, and by brute force in double.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/stage_types.h"
#include "testing/double_math.h"
#include "testing/stage_fixtures.h"

namespace switchyard::fixtures {

// What the three attention stages of one step put out.
struct AttentionResult {
  FloatRows out;                             // [T, num_heads * head_dim]
  std::vector<std::vector<int32_t>> blocks;  // [T]: chosen blocks; empty where all is read
};

// One layer with its cache. Pages are handed out in an order that depends on `page_seed`.
class AttentionLayer {
 public:
  AttentionLayer(kernels::Backend& backend, const LayerSizes& sizes,
                 const AttentionTensors& tensors, kernels::KvType type, int num_pages = 16,
                 uint64_t page_seed = 1);

  AttentionState NewSequence(int64_t max_tokens) { return {sizes_, pages_, max_tokens}; }
  AttentionResult Run(const std::vector<kernels::AttentionSequence>& sequences, const FloatRows& u);
  // Feeds the whole of `u` to a new sequence in steps of at most `num_rows` rows.
  AttentionResult RunInSteps(const FloatRows& u, int num_rows);

 private:
  kernels::Backend& backend_;
  LayerSizes sizes_;
  Loaded<kernels::AttentionWeights> loaded_;
  KvPages pages_;
};

struct AttentionOracle {
  std::vector<Doubles> out;  // as AttentionResult
  std::vector<std::vector<int32_t>> blocks;
};

// Shapes: u [T, hidden_size], from position 0 on. Keys, values and block keys are rounded as a
// cache of `type` does, queries and index queries to float.
AttentionOracle ComputeAttention(const LayerSizes& sizes, const AttentionTensors& tensors,
                                 kernels::KvType type, const FloatRows& u);

}  // namespace switchyard::fixtures
