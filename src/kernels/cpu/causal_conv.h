// Causal depthwise convolution with SiLU over the rows of one sequence, with the state that it
// carries from step to step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

#include "base/check.h"
#include "kernels/cpu/stage_kernels.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu {

// One sequence's rows. All rows are `num_channels` wide and adjacent.
struct ConvRows {
  const SequenceRows* rows = nullptr;
  int64_t num_channels = 0;
  int num_taps = 0;
  int dilation = 1;
  const float* weight = nullptr;  // [num_taps, num_channels]
  float* tail = nullptr;          // [(num_taps - 1) * dilation, num_channels]
  float* pending = nullptr;       // [kMaxProvisionalRows, num_channels]
  float* replay = nullptr;        // [num_replay, num_channels]: room for the replayed rows
  float* input = nullptr;         // [num_rows, num_channels]
};

// Replaces the input of the channels [begin, end) by its convolution, also that of the replayed
// rows; advances tail and pending rows as SequenceRows says.
//
// Shapes:  saved_tail [(num_taps - 1) * dilation, end - begin], working memory.
// Threads: any; ranges of channels are independent.
void CausalConv(const StageKernels& kernels, const ConvRows& conv, int64_t begin, int64_t end,
                float* saved_tail);

// Sets begin[i] to the first of sequence i's replayed rows when those of all sequences lie one
// after the other. Every stage with pending rows calls this once, so it also checks their number.
template <typename Sequence>
void PlaceReplayRows(absl::Span<const Sequence> sequences, int64_t* begin) {
  int64_t next = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    // More would overrun the memory of the pending rows.
    SWITCHYARD_CHECK(sequences[i].num_rows - sequences[i].num_committed <= kMaxProvisionalRows);
    begin[i] = next;
    next += sequences[i].num_replay;
  }
}

// Taps of a convolution, at most; Backend::Prepare() refuses more.
inline constexpr int kMaxConvTaps = 16;

}  // namespace switchyard::kernels::cpu
