// A step as arrays: what the forward pass computes, without who asked for it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "kernels/stage_types.h"

namespace switchyard::worker {

// Adjacent rows of one sequence.
struct BatchSequence : kernels::SequenceRows {
  int slot = 0;
  absl::Span<const int32_t> pages;    // the slot's page table
  absl::Span<const int32_t> context;  // tokens before first_position, oldest first: at least
                                      // ngram_size - 1 of them, or all
};

struct Batch {
  std::vector<int32_t> token_ids;        // [T]
  std::vector<BatchSequence> sequences;  // in the order of their rows
  std::vector<int32_t> output_rows;      // rows whose logits are needed, ascending

  int64_t num_rows() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t num_outputs() const { return static_cast<int64_t>(output_rows.size()); }

  void Reserve(int max_rows, int max_sequences) {
    token_ids.reserve(static_cast<size_t>(max_rows));
    sequences.reserve(static_cast<size_t>(max_sequences));
    output_rows.reserve(static_cast<size_t>(max_rows));
  }
  void Clear() {
    token_ids.clear();
    sequences.clear();
    output_rows.clear();
  }
};

}  // namespace switchyard::worker
