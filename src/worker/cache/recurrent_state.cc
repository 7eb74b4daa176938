#include "worker/cache/recurrent_state.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace switchyard::worker {
namespace {

constexpr int64_t kZeroBytes = int64_t{1} << 20;
constexpr int64_t kAlignmentFloats = 16;  // a cache line

// Hands out offsets from front to back.
struct Layout {
  int64_t next = 0;
  int64_t Take(int64_t floats) {
    const int64_t offset = next;
    next += (floats + kAlignmentFloats - 1) / kAlignmentFloats * kAlignmentFloats;
    return offset;
  }
};

// Parts of the committed state: of one delta net layer, and of the n-gram embedding.
struct CommittedFloats {
  int64_t delta_state = 0;
  int64_t conv_tail = 0;
  int64_t ple_tail = 0;
};

CommittedFloats CommittedFloatsOf(const model::ModelSpec& spec) {
  CommittedFloats sizes;
  if (const auto& net = spec.delta_net) {
    const int64_t value_size = int64_t{net->num_value_heads} * net->head_dim;
    sizes.delta_state = value_size * net->head_dim;
    sizes.conv_tail =
        (net->conv_kernel - 1) * (int64_t{2} * net->num_key_heads * net->head_dim + value_size);
  }
  if (const auto& ple = spec.ple) {
    sizes.ple_tail = int64_t{ple->conv_kernel - 1} * ple->ngram_size * spec.num_residual_streams *
                     spec.hidden_size;
  }
  return sizes;
}

int64_t ConvChannels(const kernels::DeltaNetShape& shape) {
  return int64_t{2} * shape.num_key_heads * shape.head_dim +
         int64_t{shape.num_value_heads} * shape.head_dim;
}

}  // namespace

int64_t CommittedStateBytes(const model::ModelSpec& spec) {
  const CommittedFloats sizes = CommittedFloatsOf(spec);
  Layout layout;
  for (const model::LayerSpec& layer : spec.layers) {
    if (layer.kind != model::LayerKind::kDeltaNet) continue;
    layout.Take(sizes.delta_state);
    layout.Take(sizes.conv_tail);
  }
  layout.Take(sizes.ple_tail);
  return layout.next * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<RecurrentState> RecurrentState::Create(kernels::Backend& backend,
                                                      const model::ModelSpec& spec,
                                                      const std::vector<LayerWeights>& layers,
                                                      int num_slots) {
  RecurrentState state;
  state.layers_.resize(layers.size());
  const int64_t wide = int64_t{spec.num_residual_streams} * spec.hidden_size;
  Layout layout;
  const CommittedFloats sizes = CommittedFloatsOf(spec);
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].kind != model::LayerKind::kDeltaNet) continue;
    state.layers_[l].state = layout.Take(sizes.delta_state);
    state.layers_[l].tail = layout.Take(sizes.conv_tail);
  }
  if (spec.ple.has_value()) state.ple_tail_ = layout.Take(sizes.ple_tail);
  state.committed_floats_ = layout.next;
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].kind == model::LayerKind::kDeltaNet) {
      const kernels::DeltaNetShape& shape = layers[l].delta_net_shape;
      state.layers_[l].pending = layout.Take(kernels::kMaxProvisionalRows * ConvChannels(shape));
      state.layers_[l].pending_gates =
          layout.Take(int64_t{kernels::kMaxProvisionalRows} * 2 * shape.num_value_heads);
    } else if (layers[l].attention_shape.qsa_ratio != 0) {
      state.layers_[l].index_ring =
          layout.Take(int64_t{kernels::kIndexRing} * layers[l].attention_shape.index_head_dim);
    }
  }
  if (spec.ple.has_value()) state.ple_pending_ = layout.Take(kernels::kMaxProvisionalRows * wide);
  state.slot_floats_ = layout.next;
  SWITCHYARD_ASSIGN_OR_RETURN(
      state.buffer_,
      backend.AllocateBuffer(std::max<int64_t>(1, num_slots * state.slot_floats_) * kFloatBytes,
                             "recurrent state"));
  state.is_clear_.assign(static_cast<size_t>(num_slots), 1);  // a new buffer is zeroed
  state.zeros_.resize(static_cast<size_t>(std::min(kZeroBytes, state.committed_bytes())));
  return state;
}

void RecurrentState::Bind(int slot, int layer, kernels::DeltaNetSequence& sequence) const {
  const LayerOffsets& offsets = layers_[static_cast<size_t>(layer)];
  sequence.state = At(slot, offsets.state);
  sequence.tail = At(slot, offsets.tail);
  sequence.pending = At(slot, offsets.pending);
  sequence.pending_gates = At(slot, offsets.pending_gates);
}

void RecurrentState::Bind(int slot, kernels::ConvSequence& sequence) const {
  sequence.tail = At(slot, ple_tail_);
  sequence.pending = At(slot, ple_pending_);
}

float* RecurrentState::index_ring(int slot, int layer) const {
  const int64_t offset = layers_[static_cast<size_t>(layer)].index_ring;
  return offset < 0 ? nullptr : At(slot, offset);
}

std::byte* RecurrentState::committed(int slot) const {
  return reinterpret_cast<std::byte*>(At(slot, 0));
}

void RecurrentState::Clear(int slot, kernels::Backend& backend, kernels::LedgerSlot& ledger) {
  uint8_t& is_clear = is_clear_[static_cast<size_t>(slot)];
  if (is_clear != 0) return;
  const int64_t total = committed_bytes();
  for (int64_t done = 0; done < total;) {
    const int64_t bytes = std::min(static_cast<int64_t>(zeros_.size()), total - done);
    backend.Upload(ledger, zeros_.data(), bytes, committed(slot) + done);
    done += bytes;
  }
  is_clear = 1;
}

}  // namespace switchyard::worker
