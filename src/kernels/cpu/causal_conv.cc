#include "kernels/cpu/causal_conv.h"

#include <cstddef>
#include <cstring>

#include "base/check.h"

namespace switchyard::kernels::cpu {

void CausalConv(const StageKernels& kernels, const ConvRows& conv, int64_t begin, int64_t end,
                float* saved_tail) {
  SWITCHYARD_DCHECK(conv.num_taps <= kMaxConvTaps);
  const SequenceRows& rows = *conv.rows;
  const int64_t width = end - begin, channels = conv.num_channels;
  const int64_t tail_rows = int64_t{conv.num_taps - 1} * conv.dilation;
  const int64_t num_inputs = int64_t{rows.num_replay} + rows.num_rows;
  const int64_t num_final = int64_t{rows.num_replay} + rows.num_committed;
  const auto copy = [width](const float* from, float* to) {
    std::memcpy(to, from, static_cast<size_t>(width) * sizeof(float));
  };
  // Input i of this step, the replayed rows first; negative = the tail.
  const auto input = [&](int64_t i) {
    if (i < 0) return saved_tail + (tail_rows + i) * width;
    if (i < rows.num_replay) return conv.replay + i * channels + begin;
    return conv.input + (i - rows.num_replay) * channels + begin;
  };

  for (int64_t i = 0; i < tail_rows; ++i) {
    copy(conv.tail + i * channels + begin, saved_tail + i * width);
  }
  for (int64_t i = 0; i < rows.num_replay; ++i) {
    copy(conv.pending + i * channels + begin, conv.replay + i * channels + begin);
  }
  for (int64_t i = 0; i < tail_rows; ++i) {
    copy(input(num_final - tail_rows + i), conv.tail + i * channels + begin);
  }
  for (int64_t i = num_final; i < num_inputs; ++i) {
    copy(input(i), conv.pending + (i - num_final) * channels + begin);
  }
  // From the last row on, since a row is an input of the later ones.
  for (int64_t i = num_inputs - 1; i >= 0; --i) {
    const float* taps[kMaxConvTaps];
    for (int tap = 0; tap < conv.num_taps; ++tap) {
      taps[tap] = input(i - int64_t{conv.num_taps - 1 - tap} * conv.dilation);
    }
    kernels.conv_silu(taps, conv.weight + begin, channels, conv.num_taps, width, input(i));
  }
}

}  // namespace switchyard::kernels::cpu
