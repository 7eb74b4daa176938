// Keys and values of all attention layers, in pages that all slots share.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/backend.h"
#include "worker/model_weights.h"

namespace switchyard::worker {

// Owns the pages. Which page belongs to which sequence is the coordinator's decision: page tables
// come with the plans. A page that several sequences share is full, so it is never written again.
class KvCache {
 public:
  // Errors: kInvalidArgument (a layer's shape cannot be cached as `type`), kResourceExhausted.
  static absl::StatusOr<KvCache> Create(kernels::Backend& backend,
                                        const std::vector<LayerWeights>& layers,
                                        kernels::KvType type, int num_pages);

  // REQUIRES: layer is an attention layer.
  const kernels::KvLayer& layer(int layer) const { return layers_[static_cast<size_t>(layer)]; }
  int64_t bytes() const { return bytes_; }

 private:
  KvCache() = default;

  std::vector<kernels::KvLayer> layers_;  // by layer of the model; empty ones between
  std::vector<std::unique_ptr<kernels::Buffer>> buffers_;
  int64_t bytes_ = 0;
};

}  // namespace switchyard::worker
