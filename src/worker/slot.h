// One generation's state on a worker, apart from what is on the device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/stage_types.h"
#include "worker/sampler.h"
#include "worker/token_counts.h"

namespace switchyard::worker {

struct Slot {
  uint64_t incarnation = 0;
  bool active = false;   // between start and free
  bool stopped = false;  // ended by itself; takes part in no further step

  // Rows [0, committed) are in the recurrent state; the `num_pending` rows after them were computed
  // but may be rejected by the next chunk.
  int64_t committed = 0;
  int num_pending = 0;
  int64_t position() const { return committed + num_pending; }

  std::vector<int32_t> pages;         // the page table
  std::vector<int32_t> recent;        // tokens before position(), oldest first, as far as needed
  std::optional<int32_t> next_token;  // sampled, not yet computed; its position is position()

  SamplingRule rule;
  TokenCounts counts;  // kept only if rule.needs_counts()
  std::vector<int32_t> stop_token_ids;
  int64_t num_prompt_tokens = 0;
  int64_t max_new_tokens = 0;
  int64_t min_new_tokens = 0;  // no stop token before so many were sampled
  int64_t num_sampled = 0;
  bool return_logits = false;
  std::optional<int> num_logprobs;

  bool runs(uint64_t use) const { return active && !stopped && incarnation == use; }

  // Enters `token_id` as the sequence's token at `at`.
  void CountToken(int32_t token_id, int64_t at) {
    if (rule.needs_counts()) counts.Add(token_id, at >= num_prompt_tokens);
  }

  // Rejects the pending rows from `first` on. REQUIRES: committed <= first <= position().
  void RejectFrom(int64_t first) {
    while (position() > first) {
      --num_pending;
      if (rule.needs_counts()) counts.Remove(recent.back(), position() >= num_prompt_tokens);
      recent.pop_back();
    }
  }

  // Forgets the older ones of `recent` but for `num_kept`.
  void TrimRecent(size_t num_kept) {
    if (recent.size() <= num_kept) return;
    recent.erase(recent.begin(), recent.end() - static_cast<int64_t>(num_kept));
  }
};

}  // namespace switchyard::worker
