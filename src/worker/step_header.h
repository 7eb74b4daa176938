// A step as the lead rank tells it to the others: what to do to their states, and which rows to
// compute. Everything is decided by then; a rank only obeys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace switchyard::worker {

// Applied in this order: starts, restores, page tables, the rows, saves.
struct StepHeader {
  struct Start {
    int32_t slot = 0;
    int32_t clears_state = 0;  // else a checkpoint overwrites it
  };
  struct Checkpoint {
    int32_t slot = 0;
    int32_t checkpoint = 0;
    int64_t position = 0;  // tokens covered
  };
  // Entries [first_entry, first_entry + num_pages) of the slot's page table; the pages of all
  // updates follow one another in `pages`.
  struct PageUpdate {
    int32_t slot = 0;
    int32_t first_entry = 0;
    int32_t num_pages = 0;
  };
  // Adjacent rows of one sequence; see kernels::SequenceRows.
  struct Sequence {
    int64_t first_position = 0;
    int32_t slot = 0;
    int32_t row_begin = 0;
    int32_t num_rows = 0;
    int32_t num_replay = 0;
    int32_t num_committed = 0;
    int32_t num_context = 0;  // tokens before first_position, in `context_ids` one after another
  };

  uint64_t epoch = 0;
  uint64_t step = 0;  // of the epoch, from 0, without gaps
  std::vector<Start> starts;
  std::vector<Checkpoint> restores;
  std::vector<PageUpdate> page_updates;
  std::vector<int32_t> pages;
  std::vector<Sequence> sequences;
  std::vector<int32_t> context_ids;
  std::vector<int32_t> token_ids;    // [T]
  std::vector<int32_t> output_rows;  // rows whose logits are needed, ascending
  // Of each output row: how many of the largest logits are looked at, 0 = all.
  std::vector<int32_t> num_candidates;
  std::vector<Checkpoint> saves;

  bool is_empty() const {
    return starts.empty() && restores.empty() && page_updates.empty() && sequences.empty() &&
           saves.empty();
  }
  // For the outputs [first, first + count) together: the most that one of them needs, 0 = all.
  int NumCandidates(int64_t first, int64_t count) const;

  // Forgets everything but epoch and step; keeps the memory.
  void Clear();

  // Appends the header's bytes, in the byte order of the host: all ranks have the same.
  void Encode(std::vector<std::byte>& out) const;
  // Errors: kInvalidArgument if these are not the bytes of a header.
  absl::Status Decode(absl::Span<const std::byte> bytes);
};

// What a rank may be told to touch.
struct StepHeaderLimits {
  int num_slots = 0;
  int num_pages = 0;
  int num_checkpoints = 0;
  int64_t max_context = 0;
  int max_step_rows = 0;
  int vocab_size = 0;
};

// Whether every number of a header that came from another process is within the limits: a rank
// refuses an index that it does not know.
//
// Errors: kInvalidArgument names the field.
absl::Status CheckStepHeader(const StepHeader& header, const StepHeaderLimits& limits);

}  // namespace switchyard::worker
