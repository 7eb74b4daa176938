// How often each token id occurs in one sequence, for the penalties.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace switchyard::worker {

// Counts of one sequence, prompt and output apart.
//
// Threads: one owner.
class TokenCounts {
 public:
  // Forgets everything and makes room for ids below `vocab_size`.
  void Reset(int64_t vocab_size) {
    counts_.assign(static_cast<size_t>(vocab_size), Count{});
    seen_.clear();
    seen_.reserve(static_cast<size_t>(vocab_size));
  }

  // REQUIRES: Reset() with a vocabulary that has `token_id`.
  void Add(int32_t token_id, bool is_output) {
    Count& count = counts_[static_cast<size_t>(token_id)];
    if (!count.listed) {
      count.listed = true;
      seen_.push_back(token_id);
    }
    ++(is_output ? count.output : count.prompt);
  }

  // Takes one Add() back: a provisional row was rejected.
  void Remove(int32_t token_id, bool is_output) {
    Count& count = counts_[static_cast<size_t>(token_id)];
    --(is_output ? count.output : count.prompt);
  }

  // Ids that were ever added, each once; their counts may be zero again.
  absl::Span<const int32_t> seen() const { return seen_; }
  int num_in_output(int32_t token_id) const {
    return static_cast<int>(counts_[static_cast<size_t>(token_id)].output);
  }
  int num_in_sequence(int32_t token_id) const {
    const Count& count = counts_[static_cast<size_t>(token_id)];
    return static_cast<int>(count.prompt + count.output);
  }

 private:
  struct Count {
    uint32_t prompt = 0;
    uint32_t output : 31 = 0;
    uint32_t listed : 1 = 0;
  };
  std::vector<Count> counts_;  // [vocab_size]
  std::vector<int32_t> seen_;
};

}  // namespace switchyard::worker
