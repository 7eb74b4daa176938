#include "coordinator/scheduler.h"

#include <algorithm>

namespace switchyard::coordinator {
namespace {

constexpr int64_t kCheckpointInterval = 16384;

int64_t PageFloor(int64_t position) { return position / kPageTokens * kPageTokens; }

// End of the chunk of `prefill` when `rows` rows are free; its begin if not even one page is.
int64_t ChunkEnd(const PrefillState& prefill, int64_t rows) {
  if (prefill.position >= prefill.prompt_end) {
    return std::min({prefill.end, prefill.position + kReplayRows, prefill.position + rows});
  }
  int64_t end = prefill.prompt_end;
  const auto due = std::upper_bound(prefill.checkpoint_positions.begin(),
                                    prefill.checkpoint_positions.end(), prefill.position);
  if (due != prefill.checkpoint_positions.end()) end = std::min(end, *due);
  if (end - prefill.position <= rows) return end;
  return std::max(prefill.position, PageFloor(prefill.position + rows));
}

}  // namespace

std::vector<ScheduledChunk> SchedulePrefill(absl::Span<const PrefillState> prefills,
                                            int num_decoding, const SchedulerOptions& options) {
  int64_t rows = options.max_step_rows - num_decoding;
  if (num_decoding > 0) rows = std::min<int64_t>(rows, options.mixed_prefill_rows);
  std::vector<ScheduledChunk> chunks;
  for (size_t i = 0; i < prefills.size() && rows > 0; ++i) {
    const int64_t end = ChunkEnd(prefills[i], rows);
    if (end == prefills[i].position) break;  // the next in line is not overtaken
    chunks.push_back({static_cast<int>(i), prefills[i].position, end});
    rows -= end - prefills[i].position;
  }
  return chunks;
}

std::vector<int64_t> CheckpointPositions(int64_t num_prompt_tokens, int64_t reused,
                                         absl::Span<const int64_t> message_borders) {
  std::vector<int64_t> positions;
  const int64_t last = PageFloor(num_prompt_tokens - 1);
  for (int64_t border : message_borders) positions.push_back(PageFloor(border));
  for (int64_t p = kCheckpointInterval; p < last; p += kCheckpointInterval) positions.push_back(p);
  positions.push_back(last);
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  std::erase_if(positions, [&](int64_t p) { return p <= reused || p > last; });
  return positions;
}

}  // namespace switchyard::coordinator
