// Decides what the next step computes: which prompts advance by how much beside the decoding slots.
// Pure functions of the sequences' state.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace switchyard::coordinator {

// Tokens of a cache page. Chunks and checkpoints end at multiples of it, so that a prefix hit
// continues exactly as the cold run would have (worker: kernels::kPageTokens, same value).
inline constexpr int kPageTokens = 64;

// Rows of a step in which a sequence's emitted tokens are computed again after a loss. Up to so
// many, a worker's state advances row by row, as it did when they were decoded, and so to the same
// bits (worker: kernels::kMaxProvisionalRows + 1, same value).
inline constexpr int kReplayRows = 16;

// REQUIRES: mixed_prefill_rows >= kPageTokens, max_step_rows >= kPageTokens + slots that decode
// (or sequences that are shorter): else a prompt may never get a chunk.
struct SchedulerOptions {
  int max_step_rows = 512;       // of a step, all sequences together
  int mixed_prefill_rows = 512;  // of the chunks in a step that also decodes
};

// Tokens that are not computed yet: a prompt and, after a loss, what had followed it.
struct PrefillState {
  int64_t position = 0;    // tokens planned so far
  int64_t prompt_end = 0;  // tokens of the prompt
  int64_t end = 0;         // with the emitted ones after it
  // Where the sequence must stop to save a checkpoint, ascending; entries up to `position` are
  // ignored.
  absl::Span<const int64_t> checkpoint_positions;
};

struct ScheduledChunk {
  int prefill_index = 0;  // which PrefillState
  int64_t begin = 0;
  int64_t end = 0;  // a multiple of kPageTokens, the prompt's end, or behind it

  bool operator==(const ScheduledChunk&) const = default;
};

// Chunks of the next step, in the order of `prefills` (first come, first served), beside
// `num_decoding` rows. A chunk ends at the prompt's end, at a checkpoint, or at a multiple of
// kPageTokens where the row budget ends; behind the prompt it has up to kReplayRows rows. Empty
// only if nothing is left or no row is free.
std::vector<ScheduledChunk> SchedulePrefill(absl::Span<const PrefillState> prefills,
                                            int num_decoding, const SchedulerOptions& options);

// Where to save checkpoints of a prompt, ascending, after `reused` tokens: the last multiple of the
// page size at or before each message border and strictly before the prompt's end, and every
// 16,384 tokens.
std::vector<int64_t> CheckpointPositions(int64_t num_prompt_tokens, int64_t reused,
                                         absl::Span<const int64_t> message_borders);

}  // namespace switchyard::coordinator
