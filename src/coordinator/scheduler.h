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

// REQUIRES: mixed_prefill_rows >= kPageTokens, max_step_rows >= kPageTokens + slots that decode
// (or sequences that are shorter): else a prompt may never get a chunk.
struct SchedulerOptions {
  int max_step_rows = 512;       // of a step, all sequences together
  int mixed_prefill_rows = 512;  // of the chunks in a step that also decodes
};

// A prompt that is not computed yet.
struct PrefillState {
  int64_t position = 0;    // tokens planned so far
  int64_t prompt_end = 0;  // tokens of the prompt
  // Where the sequence must stop to save a checkpoint, ascending; entries up to `position` are
  // ignored.
  absl::Span<const int64_t> checkpoint_positions;
};

struct ScheduledChunk {
  int prefill_index = 0;  // which PrefillState
  int64_t begin = 0;
  int64_t end = 0;  // a multiple of kPageTokens, or the prompt's end

  bool operator==(const ScheduledChunk&) const = default;
};

// Chunks of the next step, in the order of `prefills` (first come, first served), beside
// `num_decoding` rows. A chunk ends at the prompt's end, at a checkpoint, or at a multiple of
// kPageTokens where the row budget ends. Empty only if nothing is left or no row is free.
std::vector<ScheduledChunk> SchedulePrefill(absl::Span<const PrefillState> prefills,
                                            int num_decoding, const SchedulerOptions& options);

// Where to save checkpoints of a prompt, ascending, after `reused` tokens: the last multiple of the
// page size at or before each message border and strictly before the prompt's end, and every
// 16,384 tokens.
std::vector<int64_t> CheckpointPositions(int64_t num_prompt_tokens, int64_t reused,
                                         absl::Span<const int64_t> message_borders);

}  // namespace switchyard::coordinator
