#include "kernels/cpu/ple.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/causal_conv.h"
#include "kernels/cpu/cpu_weight.h"
#include "kernels/cpu/products.h"

namespace switchyard::kernels::cpu {
namespace {

constexpr int64_t kConvChannels = 256;  // of one task

struct PleBuffers {
  MatrixView<float> key;     // [T, S * hidden_size]; later the convolution
  MatrixView<float> value;   // [T, hidden_size]
  MatrixView<float> gated;   // [T, S * hidden_size]
  MatrixView<float> replay;  // [replayed rows, S * hidden_size]
  int64_t* replay_begin;     // [sequences]
  // Per thread.
  MatrixView<float> query;       // [hidden_size]
  MatrixView<float> saved_tail;  // [tail rows, kConvChannels]
  ActivationRows e;

  PleBuffers(Scratch& scratch, int num_threads, int64_t rows, int64_t replay_rows,
             int64_t num_sequences, int64_t wide, int64_t hidden_size, int64_t tail_rows,
             int64_t row_size, bool quantized)
      : key(scratch.TakeMatrix<float>(rows, wide)),
        value(scratch.TakeMatrix<float>(rows, hidden_size)),
        gated(scratch.TakeMatrix<float>(rows, wide)),
        replay(scratch.TakeMatrix<float>(replay_rows, wide)),
        replay_begin(scratch.Take<int64_t>(num_sequences)),
        query(scratch.TakePerThread<float>(num_threads, hidden_size)),
        saved_tail(scratch.TakePerThread<float>(num_threads, tail_rows * kConvChannels)),
        e(TakeActivations(scratch, rows, row_size, quantized)) {}
};

// The gate of one stream. The magnitude is clamped before the root.
float Gate(float dot, int64_t hidden_size) {
  const float d = dot / std::sqrt(static_cast<float>(hidden_size));
  const float root = std::sqrt(std::max(std::fabs(d), 1e-6f));
  const float a = d > 0 ? root : d < 0 ? -root : 0.0f;
  return 1.0f / (1.0f + std::exp(-a));
}

}  // namespace

void MeasurePle(Scratch& scratch, int num_threads, const StepLimits& limits) {
  if (limits.ple_row_size == 0) return;
  Scratch::Frame frame(scratch);
  PleBuffers(scratch, num_threads, limits.max_rows, limits.max_sequences * kMaxProvisionalRows,
             limits.max_sequences, limits.num_streams * limits.hidden_size, limits.hidden_size,
             (limits.ple_conv_kernel - 1) * limits.ple_dilation, limits.ple_row_size, true);
}

int64_t Ple(const StageContext& context, const PleWeights& w, const PleShape& shape,
            absl::Span<const ConvSequence> sequences, MatrixView<const float> e,
            MatrixView<float> h) {
  Scratch::Frame frame(context.scratch);
  const StageKernels& kernels = context.kernels;
  const int64_t wide = h.cols, hidden_size = wide / shape.num_streams;
  int64_t replay_rows = 0;
  for (const ConvSequence& sequence : sequences) replay_rows += sequence.num_replay;
  PleBuffers buffers(context.scratch, context.num_threads(), h.rows, replay_rows,
                     static_cast<int64_t>(sequences.size()), wide, hidden_size,
                     int64_t{shape.conv_kernel - 1} * shape.dilation, e.cols,
                     AnyTakesQuantized({w.key, w.value}));
  PlaceReplayRows(sequences, buffers.replay_begin);

  FillActivations(context, e, buffers.e);
  ProductGroup products(context);
  products.Add(w.key, buffers.key);
  products.Add(w.value, buffers.value);
  products.Run(buffers.e);

  const float* norm_key = CpuWeight::From(*w.norm_key).values();
  const float* norm_query = CpuWeight::From(*w.norm_query).values();
  const float* norm_conv = CpuWeight::From(*w.norm_conv).values();
  ForEach(context, h.rows, 4 * wide, [&](int64_t row, int thread) {
    float* query = buffers.query.row(thread);
    for (int s = 0; s < shape.num_streams; ++s) {
      const int64_t at = s * hidden_size;
      float* key = buffers.key.row(row) + at;
      float* gated = buffers.gated.row(row) + at;
      kernels.rms_norm(key, norm_key + at, hidden_size, shape.rms_epsilon, key);
      kernels.rms_norm(h.row(row) + at, norm_query + at, hidden_size, shape.rms_epsilon, query);
      const float gate = Gate(kernels.dot(key, query, hidden_size), hidden_size);
      kernels.scale(gate, buffers.value.row(row), hidden_size, gated);
      kernels.rms_norm(gated, norm_conv + at, hidden_size, shape.rms_epsilon, key);
    }
  });

  const float* taps = CpuWeight::From(*w.conv).taps();
  const int64_t num_blocks = (wide + kConvChannels - 1) / kConvChannels;
  ForEach(context, num_blocks, h.rows * kConvChannels, [&](int64_t block, int thread) {
    const int64_t begin = block * kConvChannels, end = std::min(begin + kConvChannels, wide);
    for (size_t i = 0; i < sequences.size(); ++i) {
      const ConvSequence& sequence = sequences[i];
      ConvRows conv;
      conv.rows = &sequence;
      conv.num_channels = wide;
      conv.num_taps = shape.conv_kernel;
      conv.dilation = shape.dilation;
      conv.weight = taps;
      conv.tail = sequence.tail;
      conv.pending = sequence.pending;
      conv.replay = buffers.replay.data + buffers.replay_begin[i] * wide;
      conv.input = buffers.key.data + sequence.row_begin * wide;
      CausalConv(kernels, conv, begin, end, buffers.saved_tail.row(thread));
    }
    for (int64_t row = 0; row < h.rows; ++row) {
      float* out = h.row(row) + begin;
      kernels.add_scaled(1.0f, buffers.gated.row(row) + begin, end - begin, out);
      kernels.add_scaled(1.0f, buffers.key.row(row) + begin, end - begin, out);
    }
  });
  return products.weight_bytes() + w.conv->resident_bytes() + w.norm_key->resident_bytes() +
         w.norm_query->resident_bytes() + w.norm_conv->resident_bytes();
}

}  // namespace switchyard::kernels::cpu
