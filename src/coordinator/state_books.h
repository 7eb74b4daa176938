// The coordinator's books of what a worker holds: slots, cache pages, saved prefixes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "coordinator/page_pool.h"
#include "coordinator/prefix_index.h"
#include "coordinator/request_check.h"
#include "coordinator/scheduler.h"
#include "coordinator/sequence.h"
#include "coordinator/worker_handle.h"

namespace switchyard::coordinator {

// Decides which numbers a sequence gets and writes them into plans. A worker has exactly what these
// books say once it has applied all plans.
//
// Threads: the engine's only.
class StateBooks {
 public:
  using StepPlan = switchyard::worker::v1::StepPlan;

  // `limits.max_sequence_tokens` is what all pages hold together. `tokenizer` must outlive the
  // books; end tokens come from it.
  StateBooks(const WorkerCapacity& capacity, const RequestLimits& limits,
             const model::Tokenizer& tokenizer);

  // Gives the sequence a slot, reusable state and all pages that it can ever need, so that no step
  // lacks memory later, and adds its start to `plan`. Sets what the sequence says the engine sets.
  // False: not now; nothing is taken.
  bool Admit(Sequence& sequence, StepPlan& plan);

  // Takes back what the sequence holds. The worker is told with the next plan, and until then may
  // write to the pages; so that plan must be the first one that gives them to somebody else.
  void Release(Sequence& sequence);

  // Adds to `plan` the slots that were released and not given away since.
  void AddFrees(StepPlan& plan);

  // Adds a chunk with the scheduled tokens to `plan`, and saves a checkpoint where one is due.
  void AddChunk(Sequence& sequence, const ScheduledChunk& scheduled, StepPlan& plan);

  // The worker has lost everything: all slots, pages and checkpoints are free again.
  void Clear();

  // The sequence in `slot`; null if it is free. REQUIRES: slot < num_slots().
  Sequence* at(uint32_t slot) const { return slots_[slot]; }
  int num_slots() const { return static_cast<int>(slots_.size()); }
  int num_pages() const { return pages_.num_pages(); }
  int num_free_pages() const { return pages_.num_free(); }
  int num_checkpoints() const { return prefixes_.num_entries(); }

  // Checks that slots and pages are held by exactly those who should, for tests.
  // Errors: kInternal says what does not balance.
  absl::Status CheckInvariants() const;

 private:
  // Finds reusable state and takes the pages of the rest.
  bool TakePages(Sequence& sequence, std::optional<PrefixIndex::Hit>& hit);
  void AddStart(const Sequence& sequence, const std::optional<PrefixIndex::Hit>& hit,
                StepPlan& plan) const;
  // Pages that no sequence holds: free ones, and those of kept prefixes only.
  int64_t NumObtainablePages() const;

  const RequestLimits limits_;
  const model::Tokenizer& tokenizer_;
  const int num_checkpoint_numbers_;
  PagePool pages_;
  PrefixIndex prefixes_;
  std::vector<Sequence*> slots_;
  std::vector<uint32_t> slots_to_free_;
  uint64_t last_incarnation_ = 0;
};

}  // namespace switchyard::coordinator
