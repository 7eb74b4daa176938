#include "worker/model_weights.h"

#include <algorithm>

#include "base/dtype.h"

namespace switchyard::worker {

TokenWeights TokenWeightsOf(const ModelWeights& weights, const model::MoeSpec& moe) {
  TokenWeights sum;
  for (const auto& owned : weights.owned) {
    const kernels::Weight& weight = *owned;
    if (&weight == weights.token_embedding && &weight != weights.output) continue;
    // Only experts have more than one slab.
    const int64_t num_slabs = weight.num_slabs();
    const int64_t num_experts = std::max(1, moe.num_experts);
    const int64_t chosen = (num_slabs * moe.top_k + num_experts / 2) / num_experts;
    const int64_t num_used = num_slabs > 1 ? std::clamp<int64_t>(chosen, 1, num_slabs) : 1;
    const int64_t parameters = num_used * weight.rows() * weight.cols();
    // Of a tensor with tiers the fast one counts, whether it has a slot or not.
    const int64_t slab_bytes = weight.num_slots() > 0
                                   ? weight.resident_bytes() / weight.num_slots()
                                   : weight.rows() * RowBytes(weight.dtype(), weight.cols());
    sum.memory_bytes += slab_bytes * num_used;
    if (weight.rows() == 1) sum.vector_bytes += weight.resident_bytes();
    sum.file_bytes += num_used * weight.rows() * RowBytes(weight.dtype(), weight.cols());
    sum.num_parameters += parameters;
    if (&weight == weights.output) sum.num_output_parameters = parameters;
  }
  return sum;
}

}  // namespace switchyard::worker
