#include "worker/cache/checkpoint.h"

#include <utility>

#include "base/check.h"

namespace switchyard::worker {

CheckpointStore::CheckpointStore(int num_checkpoints, int64_t state_bytes)
    : state_bytes_(state_bytes), entries_(static_cast<size_t>(num_checkpoints)) {
  for (Entry& entry : entries_) {
    // Not initialised, so that no page is touched before it is used.
    entry.state.reset(new std::byte[static_cast<size_t>(state_bytes)]);
  }
}

void CheckpointStore::Save(int checkpoint, const RecurrentState& state, int slot, Sequence sequence,
                           kernels::Backend& backend, kernels::LedgerSlot& ledger) {
  Entry& entry = entries_[static_cast<size_t>(checkpoint)];
  backend.Download(ledger, state.committed(slot), state_bytes_, entry.state.get());
  entry.sequence = std::move(sequence);
}

const CheckpointStore::Sequence& CheckpointStore::Restore(int checkpoint, RecurrentState& state,
                                                          int slot, kernels::Backend& backend,
                                                          kernels::LedgerSlot& ledger) const {
  const Entry& entry = entries_[static_cast<size_t>(checkpoint)];
  SWITCHYARD_CHECK(entry.sequence.position >= 0);
  state.MarkUsed(slot);
  backend.Upload(ledger, entry.state.get(), state_bytes_, state.committed(slot));
  return entry.sequence;
}

}  // namespace switchyard::worker
