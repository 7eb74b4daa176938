#include "worker/cache/checkpoint.h"

#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace switchyard::worker {

absl::StatusOr<CheckpointStore> CheckpointStore::Create(int num_checkpoints, int64_t state_bytes) {
  CheckpointStore store(state_bytes);
  store.entries_.reserve(static_cast<size_t>(num_checkpoints));
  for (int i = 0; i < num_checkpoints; ++i) {
    absl::StatusOr<Arena> memory =
        Arena::Create(state_bytes, {.huge_pages = false, .require_available = false});
    if (!memory.ok()) return WithContext(memory.status(), "checkpoints");
    std::byte* const state = memory->Allocate(state_bytes);
    store.entries_.push_back({.position = -1, .memory = *std::move(memory), .state = state});
  }
  return store;
}

void CheckpointStore::Save(int checkpoint, const RecurrentState& state, int slot, int64_t position,
                           kernels::Backend& backend, kernels::LedgerSlot& ledger) {
  Entry& entry = entries_[static_cast<size_t>(checkpoint)];
  backend.Download(ledger, state.committed(slot), state_bytes_, entry.state);
  entry.position = position;
}

void CheckpointStore::Restore(int checkpoint, RecurrentState& state, int slot,
                              kernels::Backend& backend, kernels::LedgerSlot& ledger) const {
  const Entry& entry = entries_[static_cast<size_t>(checkpoint)];
  SWITCHYARD_CHECK(entry.position >= 0);
  state.MarkUsed(slot);
  backend.Upload(ledger, entry.state, state_bytes_, state.committed(slot));
}

void CheckpointStore::Clear() {
  for (Entry& entry : entries_) entry.position = -1;
}

}  // namespace switchyard::worker
