// What a sequence carries from row to row beside its KV pages, for every slot of a rank.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/backend.h"
#include "model/model_spec.h"
#include "worker/model_weights.h"

namespace switchyard::worker {

// Bytes of the committed state of one sequence over all ranks: what one checkpoint takes beside its
// pages.
int64_t CommittedStateBytes(const model::ModelSpec& spec);

// One buffer, cut into equal parts for the slots. A slot's part begins with its *committed* state:
// delta net states, convolution tails and the n-gram embedding's tail. Then comes what only
// rows that may still be rejected need (pending inputs), and the index key rings. The rings are not
// part of a checkpoint: at a multiple of kPageTokens no block of keys is incomplete, and only
// incomplete blocks are read from the ring.
//
// Threads: the step thread.
class RecurrentState {
 public:
  // Errors: kResourceExhausted.
  static absl::StatusOr<RecurrentState> Create(kernels::Backend& backend,
                                               const model::ModelSpec& spec,
                                               const ModelWeights& weights, int num_slots);

  // Sets the state pointers of `sequence` to those of the slot; its rows are left alone.
  // REQUIRES: `layer` is of the fitting kind.
  void Bind(int slot, int layer, kernels::DeltaNetSequence& sequence) const;
  void Bind(int slot, kernels::ConvSequence& sequence) const;  // of the n-gram embedding
  float* index_ring(int slot, int layer) const;                // null in a dense layer

  // The committed state of a slot: all that a checkpoint holds.
  std::byte* committed(int slot) const;
  int64_t committed_bytes() const { return committed_floats_ * kFloatBytes; }

  // To be called when the committed state of the slot is about to change.
  void MarkUsed(int slot) { is_clear_[static_cast<size_t>(slot)] = 0; }

  // Makes the committed state that of an empty sequence.
  void Clear(int slot, kernels::Backend& backend, kernels::LedgerSlot& ledger);

  int64_t bytes() const { return buffer_->bytes(); }

 private:
  static constexpr int64_t kFloatBytes = sizeof(float);

  // Offsets into a slot's part, in floats.
  struct LayerOffsets {
    int64_t state = 0, tail = 0, pending = 0, pending_gates = 0;  // delta net
    int64_t index_ring = -1;                                      // attention
  };

  RecurrentState() = default;
  float* At(int slot, int64_t offset) const {
    return reinterpret_cast<float*>(buffer_->data()) + slot * slot_floats_ + offset;
  }

  std::vector<LayerOffsets> layers_;
  int64_t ple_tail_ = 0, ple_pending_ = 0;
  int64_t committed_floats_ = 0, slot_floats_ = 0;
  std::unique_ptr<kernels::Buffer> buffer_;
  std::vector<uint8_t> is_clear_;  // per slot: the committed state is zero
  std::vector<std::byte> zeros_;
};

}  // namespace switchyard::worker
