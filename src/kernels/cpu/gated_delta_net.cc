#include "kernels/cpu/gated_delta_net.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/causal_conv.h"
#include "kernels/cpu/cpu_weight.h"
#include "kernels/cpu/products.h"

namespace switchyard::kernels::cpu {
namespace {

struct DeltaSizes {
  int64_t num_key_heads, num_value_heads, head_dim;

  int64_t key_values() const { return num_key_heads * head_dim; }
  int64_t values() const { return num_value_heads * head_dim; }
  int64_t channels() const { return 2 * key_values() + values(); }
};

struct DeltaBuffers {
  MatrixView<float> qkv;          // [T, channels]: projected, then convolved
  MatrixView<float> z;            // [T, values]: output gate
  MatrixView<float> beta, alpha;  // [T, num_value_heads]: logits
  MatrixView<float> replay;       // [replayed rows, channels]
  MatrixView<float> out;          // [T, values]: the heads' outputs, normalised and gated
  int64_t* replay_begin;          // [sequences]
  // Per thread.
  MatrixView<float> saved_tail;  // [conv_kernel - 1, kMaxTaskRows]
  MatrixView<float> q, k;        // [kPageTokens, head_dim]
  MatrixView<float> gates;       // [2, kPageTokens]: beta, log decay
  MatrixView<float> state;       // [head_dim, head_dim]: beyond the committed rows
  MatrixView<float> discarded;   // [head_dim]: output of replayed rows
  MatrixView<float> chunk;       // DeltaChunkScratch()
  ActivationRows u, out_rows;

  DeltaBuffers(Scratch& scratch, int num_threads, const DeltaSizes& sizes, int conv_kernel,
               int64_t rows, int64_t replay_rows, int64_t num_sequences, int64_t hidden_size,
               bool quantized, bool out_quantized)
      : qkv(scratch.TakeMatrix<float>(rows, sizes.channels())),
        z(scratch.TakeMatrix<float>(rows, sizes.values())),
        beta(scratch.TakeMatrix<float>(rows, sizes.num_value_heads)),
        alpha(scratch.TakeMatrix<float>(rows, sizes.num_value_heads)),
        replay(scratch.TakeMatrix<float>(replay_rows, sizes.channels())),
        out(scratch.TakeMatrix<float>(rows, sizes.values())),
        replay_begin(scratch.Take<int64_t>(num_sequences)),
        saved_tail(scratch.TakePerThread<float>(num_threads, (conv_kernel - 1) * kMaxTaskRows)),
        q(scratch.TakePerThread<float>(num_threads, kPageTokens * sizes.head_dim)),
        k(scratch.TakePerThread<float>(num_threads, kPageTokens * sizes.head_dim)),
        gates(scratch.TakePerThread<float>(num_threads, 2 * kPageTokens)),
        state(scratch.TakePerThread<float>(num_threads, sizes.head_dim * sizes.head_dim)),
        discarded(scratch.TakePerThread<float>(num_threads, sizes.head_dim)),
        chunk(scratch.TakePerThread<float>(num_threads, DeltaChunkScratch(sizes.head_dim))),
        u(TakeActivations(scratch, rows, hidden_size, quantized)),
        out_rows(TakeActivations(scratch, rows, sizes.values(), out_quantized)) {}
};

float Softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// One value head of one sequence.
class HeadTask {
 public:
  HeadTask(const StageContext& context, const DeltaNetWeights& w, const DeltaNetShape& shape,
           const DeltaSizes& sizes, const DeltaBuffers& buffers, int64_t head, int thread)
      : kernels_(context.kernels),
        w_(w),
        shape_(shape),
        sizes_(sizes),
        buffers_(buffers),
        head_(head),
        key_head_(shape.tiled_heads ? head % sizes.num_key_heads
                                    : head / (sizes.num_value_heads / sizes.num_key_heads)),
        thread_(thread),
        beta_(buffers.gates.row(thread)),
        log_decay_(beta_ + kPageTokens) {}

  void Run(const DeltaNetSequence& sequence, int64_t replay_begin) {
    const int64_t dim = sizes_.head_dim;
    float* state = sequence.state + head_ * dim * dim;
    Replay(sequence, replay_begin, state);
    // Committed rows, cut at absolute multiples of kPageTokens; the others step one by one on a
    // copy of the state.
    int64_t row = 0;
    while (row < sequence.num_committed) {
      const int64_t to_border = kPageTokens - (sequence.first_position + row) % kPageTokens;
      const int64_t count = std::min<int64_t>(to_border, sequence.num_committed - row);
      Advance(sequence, row, count, state, count >= kDeltaChunkMinRows);
      row += count;
    }
    if (row == sequence.num_rows) return;
    float* copy = buffers_.state.row(thread_);
    std::memcpy(copy, state, static_cast<size_t>(dim * dim) * sizeof(float));
    const int64_t count = sequence.num_rows - row;
    Advance(sequence, row, count, copy, false);
    for (int64_t i = 0; i < count; ++i) {
      float* gates = sequence.pending_gates + i * 2 * sizes_.num_value_heads + head_;
      gates[0] = beta_[i];
      gates[sizes_.num_value_heads] = log_decay_[i];
    }
  }

 private:
  // Points to the convolved q, k and v of a row of `qkv` or `replay`.
  const float* Query(const float* row) const { return row + key_head_ * sizes_.head_dim; }
  const float* Key(const float* row) const { return Query(row) + sizes_.key_values(); }
  const float* Value(const float* row) const {
    return row + 2 * sizes_.key_values() + head_ * sizes_.head_dim;
  }

  void Replay(const DeltaNetSequence& sequence, int64_t replay_begin, float* state) {
    const int64_t dim = sizes_.head_dim;
    float* q = buffers_.q.row(thread_);
    float* k = buffers_.k.row(thread_);
    for (int64_t i = 0; i < sequence.num_replay; ++i) {
      const float* row = buffers_.replay.row(replay_begin + i);
      const float* gates = sequence.pending_gates + i * 2 * sizes_.num_value_heads + head_;
      kernels_.delta_normalize(Query(row), Key(row), dim, q, k);
      kernels_.delta_step(state, q, k, Value(row), std::exp(gates[sizes_.num_value_heads]),
                          gates[0], dim, buffers_.discarded.row(thread_));
    }
  }

  // Applies the rows [first, first + count) of the sequence to `state` and finishes their outputs.
  void Advance(const DeltaNetSequence& sequence, int64_t first, int64_t count, float* state,
               bool as_chunk) {
    SWITCHYARD_DCHECK(count <= kPageTokens);
    const int64_t dim = sizes_.head_dim, begin = sequence.row_begin + first;
    float* q = buffers_.q.row(thread_);
    float* k = buffers_.k.row(thread_);
    const float a = CpuWeight::From(*w_.a).values()[head_];
    const float dt_bias = CpuWeight::From(*w_.dt_bias).values()[head_];
    for (int64_t i = 0; i < count; ++i) {
      const float* row = buffers_.qkv.row(begin + i);
      kernels_.delta_normalize(Query(row), Key(row), dim, q + i * dim, k + i * dim);
      beta_[i] = 1.0f / (1.0f + std::exp(-buffers_.beta.row(begin + i)[head_]));
      log_decay_[i] = a * Softplus(buffers_.alpha.row(begin + i)[head_] + dt_bias);
    }
    if (as_chunk) {
      DeltaChunk chunk;
      chunk.num_rows = count;
      chunk.head_dim = dim;
      chunk.state = state;
      chunk.query = q;
      chunk.key = k;
      chunk.value = Value(buffers_.qkv.row(begin));
      chunk.value_stride = buffers_.qkv.row_stride;
      chunk.beta = beta_;
      chunk.log_decay = log_decay_;
      chunk.out = Out(begin);
      chunk.out_stride = buffers_.out.row_stride;
      chunk.scratch = buffers_.chunk.row(thread_);
      kernels_.delta_chunk(chunk);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        kernels_.delta_step(state, q + i * dim, k + i * dim, Value(buffers_.qkv.row(begin + i)),
                            std::exp(log_decay_[i]), beta_[i], dim, Out(begin + i));
      }
    }
    const float* norm = CpuWeight::From(*w_.norm).values();
    for (int64_t i = 0; i < count; ++i) {
      float* out = Out(begin + i);
      const float* z = buffers_.z.row(begin + i) + head_ * dim;
      kernels_.rms_norm(out, norm, dim, shape_.rms_epsilon, out);
      shape_.silu_gate ? kernels_.mul_silu(z, dim, out) : kernels_.mul_sigmoid(z, dim, out);
    }
  }

  float* Out(int64_t row) const { return buffers_.out.row(row) + head_ * sizes_.head_dim; }

  const StageKernels& kernels_;
  const DeltaNetWeights& w_;
  const DeltaNetShape& shape_;
  const DeltaSizes& sizes_;
  const DeltaBuffers& buffers_;
  const int64_t head_;
  const int64_t key_head_;
  const int thread_;
  float* beta_;       // of the rows of the last Advance()
  float* log_decay_;  // the same
};

}  // namespace

void MeasureGatedDeltaNet(Scratch& scratch, int num_threads, const StepLimits& limits) {
  if (limits.num_value_heads == 0) return;
  Scratch::Frame frame(scratch);
  const DeltaSizes sizes = {limits.num_key_heads, limits.num_value_heads, limits.delta_head_dim};
  DeltaBuffers(scratch, num_threads, sizes, static_cast<int>(limits.delta_conv_kernel),
               limits.max_rows, limits.max_sequences * kMaxProvisionalRows, limits.max_sequences,
               limits.hidden_size, true, true);
}

int64_t GatedDeltaNet(const StageContext& context, const DeltaNetWeights& w,
                      const DeltaNetShape& shape, absl::Span<const DeltaNetSequence> sequences,
                      MatrixView<const float> u, MatrixView<float> y) {
  Scratch::Frame frame(context.scratch);
  const DeltaSizes sizes = {shape.num_key_heads, shape.num_value_heads, shape.head_dim};
  int64_t replay_rows = 0;
  for (const DeltaNetSequence& sequence : sequences) replay_rows += sequence.num_replay;
  DeltaBuffers buffers(context.scratch, context.num_threads(), sizes, shape.conv_kernel, u.rows,
                       replay_rows, static_cast<int64_t>(sequences.size()), u.cols,
                       AnyTakesQuantized({w.qkv, w.gate, w.beta, w.alpha}),
                       AnyTakesQuantized({w.output}));
  PlaceReplayRows(sequences, buffers.replay_begin);

  FillActivations(context, u, buffers.u);
  ProductGroup products(context);
  products.Add(w.qkv, buffers.qkv);
  products.Add(w.gate, buffers.z);
  products.Add(w.beta, buffers.beta);
  products.Add(w.alpha, buffers.alpha);
  const float* taps = CpuWeight::From(*w.conv).taps();
  products.Run(buffers.u, [&](int product, int64_t begin, int64_t end, int thread) {
    if (product != 0) return;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const DeltaNetSequence& sequence = sequences[i];
      ConvRows conv;
      conv.rows = &sequence;
      conv.num_channels = sizes.channels();
      conv.num_taps = shape.conv_kernel;
      conv.weight = taps;
      conv.tail = sequence.tail;
      conv.pending = sequence.pending;
      conv.replay = buffers.replay.data + buffers.replay_begin[i] * sizes.channels();
      conv.input = buffers.qkv.data + sequence.row_begin * sizes.channels();
      CausalConv(context.kernels, conv, begin, end, buffers.saved_tail.row(thread));
    }
  });

  const int64_t num_tasks = static_cast<int64_t>(sequences.size()) * sizes.num_value_heads;
  context.pool.ParallelFor(num_tasks, [&](int64_t task, int thread) {
    const auto index = static_cast<size_t>(task / sizes.num_value_heads);
    HeadTask(context, w, shape, sizes, buffers, task % sizes.num_value_heads, thread)
        .Run(sequences[index], buffers.replay_begin[index]);
  });

  FillActivations(context, buffers.out, buffers.out_rows);
  const CpuWeight& output = CpuWeight::From(*w.output);
  MatMulSharded(context.pool, context.level, output.matrix(), w.output_shards, buffers.out_rows, y,
                context.matmul);
  return products.weight_bytes() + output.resident_bytes() + w.conv->resident_bytes();
}

}  // namespace switchyard::kernels::cpu
