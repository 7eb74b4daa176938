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

int64_t ConvChannels(int64_t num_key_heads, int64_t num_value_heads, int64_t head_dim) {
  return (2 * num_key_heads + num_value_heads) * head_dim;
}
int64_t ConvChannels(const kernels::DeltaNetShape& shape) {
  return ConvChannels(shape.num_key_heads, shape.num_value_heads, shape.head_dim);
}

// Parts of the committed state of one delta net layer.
int64_t StateFloats(int64_t num_value_heads, int64_t head_dim) {
  return num_value_heads * head_dim * head_dim;
}
int64_t TailFloats(int64_t channels, int conv_kernel) { return (conv_kernel - 1) * channels; }

int64_t PleTailFloats(const model::ModelSpec& spec) {
  return int64_t{spec.ple->conv_kernel - 1} * spec.ple->ngram_size * spec.num_residual_streams *
         spec.hidden_size;
}

}  // namespace

int64_t CommittedStateBytes(const model::ModelSpec& spec) {
  Layout layout;
  for (const model::LayerSpec& layer : spec.layers) {
    if (layer.kind != model::LayerKind::kDeltaNet) continue;
    const model::DeltaNetSpec& net = *spec.delta_net;
    layout.Take(StateFloats(net.num_value_heads, net.head_dim));
    layout.Take(TailFloats(ConvChannels(net.num_key_heads, net.num_value_heads, net.head_dim),
                           net.conv_kernel));
  }
  if (spec.ple.has_value()) layout.Take(PleTailFloats(spec));
  return layout.next * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<RecurrentState> RecurrentState::Create(kernels::Backend& backend,
                                                      const model::ModelSpec& spec,
                                                      const ModelWeights& weights, int num_slots) {
  const std::vector<LayerWeights>& layers = weights.layers;
  RecurrentState state;
  state.layers_.resize(layers.size());
  const int64_t wide = int64_t{spec.num_residual_streams} * spec.hidden_size;
  Layout layout;
  for (size_t l = 0; l < layers.size(); ++l) {
    if (!layers[l].has_delta_net()) continue;
    const kernels::DeltaNetShape& shape = layers[l].delta_net_shape;
    state.layers_[l].state = layout.Take(StateFloats(shape.num_value_heads, shape.head_dim));
    state.layers_[l].tail = layout.Take(TailFloats(ConvChannels(shape), shape.conv_kernel));
  }
  if (weights.has_ple()) state.ple_tail_ = layout.Take(PleTailFloats(spec));
  state.committed_floats_ = layout.next;
  for (size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].has_delta_net()) {
      const kernels::DeltaNetShape& shape = layers[l].delta_net_shape;
      state.layers_[l].pending = layout.Take(kernels::kMaxProvisionalRows * ConvChannels(shape));
      state.layers_[l].pending_gates =
          layout.Take(int64_t{kernels::kMaxProvisionalRows} * 2 * shape.num_value_heads);
    } else if (layers[l].has_attention() && layers[l].attention_shape.qsa_ratio != 0) {
      state.layers_[l].index_ring =
          layout.Take(int64_t{kernels::kIndexRing} * layers[l].attention_shape.index_head_dim);
    }
  }
  if (weights.has_ple()) state.ple_pending_ = layout.Take(kernels::kMaxProvisionalRows * wide);
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
