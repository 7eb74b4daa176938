#include "worker/cache/kv_cache.h"

#include <utility>

#include "base/status.h"
#include "base/status_macros.h"
#include "kernels/kv_layout.h"

namespace switchyard::worker {

absl::StatusOr<KvCache> KvCache::Create(kernels::Backend& backend,
                                        const std::vector<LayerWeights>& layers,
                                        kernels::KvType type, int num_pages) {
  KvCache cache;
  cache.layers_.resize(layers.size());
  const auto allocate = [&](int64_t bytes, std::string_view what,
                            std::byte*& target) -> absl::Status {
    if (bytes == 0) return absl::OkStatus();
    auto buffer = backend.AllocateBuffer(bytes, what);
    if (!buffer.ok()) return buffer.status();
    target = (*buffer)->data();
    cache.bytes_ += bytes;
    cache.buffers_.push_back(*std::move(buffer));
    return absl::OkStatus();
  };
  for (size_t l = 0; l < layers.size(); ++l) {
    if (!layers[l].has_attention()) continue;
    const kernels::AttentionShape& shape = layers[l].attention_shape;
    SWITCHYARD_RETURN_IF_ERROR(
        WithContext(kernels::CheckKvLayout(shape, type), fmt::format("layer {}", l)));
    const kernels::KvLayout layout(shape, type);
    kernels::KvLayer& layer = cache.layers_[l];
    layer.type = type;
    SWITCHYARD_RETURN_IF_ERROR(allocate(num_pages * layout.page_bytes(), "keys", layer.keys));
    SWITCHYARD_RETURN_IF_ERROR(allocate(num_pages * layout.page_bytes(), "values", layer.values));
    SWITCHYARD_RETURN_IF_ERROR(
        allocate(num_pages * layout.block_key_page_bytes(), "block keys", layer.block_keys));
  }
  return cache;
}

}  // namespace switchyard::worker
