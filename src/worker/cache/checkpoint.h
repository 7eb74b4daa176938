// Saved states of sequences, for going on from a common prefix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "base/arena.h"
#include "kernels/backend.h"
#include "worker/cache/recurrent_state.h"

namespace switchyard::worker {

// Holds a fixed number of checkpoints in host memory, which is taken page by page when the first
// state is saved. Keys and values are not copied: their pages are shared.
//
// Threads: the step thread.
class CheckpointStore {
 public:
  // Errors: kResourceExhausted.
  static absl::StatusOr<CheckpointStore> Create(int num_checkpoints, int64_t state_bytes);

  // Copies the committed state of `slot`, which covers `position` tokens.
  void Save(int checkpoint, const RecurrentState& state, int slot, int64_t position,
            kernels::Backend& backend, kernels::LedgerSlot& ledger);

  // Copies it back into `slot`. REQUIRES: position(checkpoint) >= 0.
  void Restore(int checkpoint, RecurrentState& state, int slot, kernels::Backend& backend,
               kernels::LedgerSlot& ledger) const;

  // Forgets all of them.
  void Clear();

  // Tokens that the checkpoint covers, -1 if it was never saved.
  int64_t position(int checkpoint) const {
    return entries_[static_cast<size_t>(checkpoint)].position;
  }
  int64_t bytes() const { return static_cast<int64_t>(entries_.size()) * state_bytes_; }

 private:
  struct Entry {
    int64_t position = -1;
    Arena memory;
    std::byte* state;  // in `memory`
  };

  explicit CheckpointStore(int64_t state_bytes) : state_bytes_(state_bytes) {}

  int64_t state_bytes_;
  std::vector<Entry> entries_;
};

}  // namespace switchyard::worker
