#include "kernels/cpu/experts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/cpu_weight.h"
#include "kernels/cpu/products.h"

namespace switchyard::kernels::cpu {
namespace {

constexpr int64_t kShards = 4;
// Rows of a step that are sorted together; larger steps are cut, which changes no result.
constexpr int64_t kTileTokens = 512;
// Weight rows of one task: in decode 32 rows of gate and of up, or of down for all chosen experts,
// are 30 to 120 KiB.
constexpr int64_t kTaskRows = 32;
// Activation rows whose products a task holds at a time.
constexpr int64_t kHeldRows = 128;

// A (token, expert) pair, sorted by expert, then token.
struct ExpertRun {
  int32_t expert;
  int32_t begin;  // of its pairs
  int32_t count;
};

struct ExpertBuffers {
  MatrixView<float> inner;         // [pairs, expert_hidden_size]
  MatrixView<float> shared_inner;  // [tokens, shared_expert_hidden_size]
  float* shared_weight;            // [tokens]
  int32_t* cursor;                 // [num_experts]
  ExpertRun* runs;                 // [chosen experts]
  int32_t* token;                  // [pairs]
  float* weight;                   // [pairs]
  // Per thread.
  MatrixView<float> held;  // gate and up [2, kHeldRows, kTaskRows], or partial sums
                           // [kShards, kHeldRows, kTaskRows]
  MatrixView<float> sums;  // [tokens, kShards, kTaskRows]
  ActivationRows u, inner_rows, shared_rows;

  ExpertBuffers(Scratch& scratch, int num_threads, int64_t rows, int64_t top_k, int64_t num_experts,
                int64_t hidden_size, int64_t inner_size, int64_t shared_size, bool quantized,
                bool inner_quantized, bool shared_quantized)
      : inner(scratch.TakeMatrix<float>(std::min(rows, kTileTokens) * top_k, inner_size)),
        shared_inner(scratch.TakeMatrix<float>(std::min(rows, kTileTokens), shared_size)),
        shared_weight(scratch.Take<float>(std::min(rows, kTileTokens))),
        cursor(scratch.Take<int32_t>(num_experts)),
        runs(scratch.Take<ExpertRun>(std::min(num_experts, inner.rows))),
        token(scratch.Take<int32_t>(inner.rows)),
        weight(scratch.Take<float>(inner.rows)),
        held(scratch.TakePerThread<float>(num_threads, kShards * kHeldRows * kTaskRows)),
        sums(scratch.TakePerThread<float>(num_threads, shared_inner.rows * kShards * kTaskRows)),
        u(TakeActivations(scratch, rows, hidden_size, quantized)),
        inner_rows(TakeActivations(scratch, inner.rows, inner_size, inner_quantized)),
        shared_rows(TakeActivations(scratch, shared_inner.rows, shared_size, shared_quantized)) {}
};

ActivationRows SomeRows(const ActivationRows& x, int64_t first, int64_t count) {
  ActivationRows some = x;
  some.values = x.values.Rows(first, count);
  if (x.quantized.quants != nullptr) some.quantized = x.quantized.Rows(first, count);
  return some;
}

// One tile of tokens.
class ExpertsTile {
 public:
  ExpertsTile(const StageContext& context, const MoeWeights& w, const ExpertBuffers& buffers,
              const ActivationRows& u, MatrixView<float> y)
      : context_(context),
        w_(w),
        buffers_(buffers),
        u_(u),
        y_(y),
        num_tokens_(y.rows),
        inner_size_(w.down->cols()),
        shared_size_(w.shared_down == nullptr ? 0 : w.shared_down->cols()) {}

  // Returns the number of different experts.
  int64_t Run(MatrixView<const int32_t> experts, MatrixView<const float> weights) {
    Sort(experts, weights);
    GateAndUp();
    Quantize();
    Down();
    return num_runs_;
  }

 private:
  // Counting sort of the pairs by expert; tokens stay in order.
  void Sort(MatrixView<const int32_t> experts, MatrixView<const float> weights) {
    const int64_t num_experts = w_.down->num_slabs();
    int32_t* cursor = buffers_.cursor;
    std::fill_n(cursor, num_experts, 0);
    for (int64_t t = 0; t < num_tokens_; ++t) {
      for (int64_t i = 0; i < experts.cols; ++i) {
        SWITCHYARD_DCHECK(experts.row(t)[i] >= 0 && experts.row(t)[i] < num_experts);
        ++cursor[experts.row(t)[i]];
      }
    }
    num_runs_ = 0;
    num_pairs_ = 0;
    for (int64_t e = 0; e < num_experts; ++e) {
      const int32_t count = cursor[e];
      cursor[e] = num_pairs_;
      if (count == 0) continue;
      buffers_.runs[num_runs_++] = {static_cast<int32_t>(e), num_pairs_, count};
      num_pairs_ += count;
    }
    for (int64_t t = 0; t < num_tokens_; ++t) {
      for (int64_t i = 0; i < experts.cols; ++i) {
        const int32_t pair = cursor[experts.row(t)[i]]++;
        buffers_.token[pair] = static_cast<int32_t>(t);
        buffers_.weight[pair] = weights.row(t)[i];
      }
    }
  }

  void GateAndUp() {
    const int64_t blocks = (inner_size_ + kTaskRows - 1) / kTaskRows;
    const int64_t shared_blocks = (shared_size_ + kTaskRows - 1) / kTaskRows;
    const int64_t routed_tasks = num_runs_ * blocks;
    const int64_t gate_tasks = shared_size_ == 0 ? 0 : 1;
    context_.pool.ParallelFor(
        routed_tasks + shared_blocks + gate_tasks, [&](int64_t task, int thread) {
          if (task < routed_tasks) {
            RoutedInner(buffers_.runs[task / blocks], task % blocks * kTaskRows, thread);
          } else if (task < routed_tasks + shared_blocks) {
            SharedInner((task - routed_tasks) * kTaskRows, thread);
          } else {
            SharedWeights();
          }
        });
  }

  // silu(gate u) * (up u) for the inner rows [begin, begin + kTaskRows) of one expert.
  void RoutedInner(const ExpertRun& run, int64_t begin, int thread) {
    const int64_t end = std::min(begin + kTaskRows, inner_size_);
    const bool fused = w_.gate_up != nullptr;
    const WeightMatrix gate = CpuWeight::From(fused ? *w_.gate_up : *w_.gate).matrix(run.expert);
    const WeightMatrix up = fused ? gate : CpuWeight::From(*w_.up).matrix(run.expert);
    const int64_t up_row = fused ? inner_size_ : 0;
    for (int64_t i = 0; i < run.count; i += kHeldRows) {
      const int64_t count = std::min(kHeldRows, run.count - i);
      Inner(gate, up, up_row, begin, end, buffers_.token + run.begin + i, u_, count,
            buffers_.inner.Rows(run.begin + i, count), thread);
    }
  }

  void SharedInner(int64_t begin, int thread) {
    const int64_t end = std::min(begin + kTaskRows, shared_size_);
    for (int64_t t = 0; t < num_tokens_; t += kHeldRows) {
      const int64_t count = std::min(kHeldRows, num_tokens_ - t);
      Inner(CpuWeight::From(*w_.shared_gate).matrix(), CpuWeight::From(*w_.shared_up).matrix(), 0,
            begin, end, nullptr, SomeRows(u_, t, count), count,
            buffers_.shared_inner.Rows(t, count), thread);
    }
  }

  void Inner(const WeightMatrix& gate, const WeightMatrix& up, int64_t up_row, int64_t begin,
             int64_t end, const int32_t* x_rows, const ActivationRows& x, int64_t count,
             MatrixView<float> inner, int thread) {
    const std::array<int64_t, 2> borders = {0, gate.cols};
    MatMulScratch& scratch = context_.matmul[static_cast<size_t>(thread)];
    float* gates = buffers_.held.row(thread);
    float* ups = gates + kHeldRows * kTaskRows;
    MatMulRows(context_.level, {gate, begin, end, x_rows, count}, borders, x, {gates, kTaskRows, 0},
               scratch);
    MatMulRows(context_.level, {up, up_row + begin, up_row + end, x_rows, count}, borders, x,
               {ups, kTaskRows, 0}, scratch);
    for (int64_t i = 0; i < count; ++i) {
      context_.kernels.silu_mul(gates + i * kTaskRows, ups + i * kTaskRows, end - begin,
                                inner.row(i) + begin);
    }
  }

  void SharedWeights() {
    if (w_.shared_gate_input == nullptr) {
      std::fill_n(buffers_.shared_weight, num_tokens_, 1.0f);
      return;
    }
    const float* gate = CpuWeight::From(*w_.shared_gate_input).values();
    for (int64_t t = 0; t < num_tokens_; ++t) {
      const float logit = context_.kernels.dot(gate, u_.values.row(t), u_.values.cols);
      buffers_.shared_weight[t] = 1.0f / (1.0f + std::exp(-logit));
    }
  }

  // Each row once, for all output blocks.
  void Quantize() {
    inner_rows_ = buffers_.inner_rows;
    shared_rows_ = buffers_.shared_rows;
    FillActivations(context_, buffers_.inner.Rows(0, num_pairs_), inner_rows_);
    if (shared_size_ != 0) {
      FillActivations(context_, buffers_.shared_inner.Rows(0, num_tokens_), shared_rows_);
    }
  }

  void Down() {
    const int64_t hidden_size = y_.cols;
    context_.pool.ParallelFor((hidden_size + kTaskRows - 1) / kTaskRows,
                              [&](int64_t task, int thread) {
                                const int64_t begin = task * kTaskRows;
                                DownBlock(begin, std::min(begin + kTaskRows, hidden_size), thread);
                              });
  }

  // The output elements [begin, end) of all tokens: experts ascending, the shared one last.
  void DownBlock(int64_t begin, int64_t end, int thread) {
    float* sums = buffers_.sums.row(thread);
    std::memset(sums, 0, static_cast<size_t>(num_tokens_ * kShards * kTaskRows) * sizeof(float));
    for (int64_t r = 0; r < num_runs_; ++r) {
      const ExpertRun& run = buffers_.runs[r];
      const WeightMatrix down = CpuWeight::From(*w_.down).matrix(run.expert);
      for (int64_t i = 0; i < run.count; i += kHeldRows) {
        const int64_t first = run.begin + i;
        const int64_t count = std::min(kHeldRows, run.count - i);
        AddDown(down, begin, end, w_.down_shards, SomeRows(inner_rows_, first, count), count,
                buffers_.token + first, 0, buffers_.weight + first, sums, thread);
      }
    }
    if (shared_size_ != 0) {
      const WeightMatrix down = CpuWeight::From(*w_.shared_down).matrix();
      for (int64_t t = 0; t < num_tokens_; t += kHeldRows) {
        const int64_t count = std::min(kHeldRows, num_tokens_ - t);
        AddDown(down, begin, end, w_.shared_down_shards, SomeRows(shared_rows_, t, count), count,
                nullptr, t, buffers_.shared_weight + t, sums, thread);
      }
    }
    for (int64_t t = 0; t < num_tokens_; ++t) {
      const float* sum = sums + t * kShards * kTaskRows;
      context_.kernels.sum4(sum, sum + kTaskRows, sum + 2 * kTaskRows, sum + 3 * kTaskRows,
                            end - begin, y_.row(t) + begin);
    }
  }

  // sums[token, shard] += weight * partial product of the shard. Row i of `x` belongs to
  // tokens[i], or to first_token + i.
  void AddDown(const WeightMatrix& down, int64_t begin, int64_t end, const ShardBorders& shards,
               const ActivationRows& x, int64_t count, const int32_t* tokens, int64_t first_token,
               const float* weights, float* sums, int thread) {
    SWITCHYARD_DCHECK(shards.num_strips == 1);  // an inner width has no heads
    float* partials = buffers_.held.row(thread);
    constexpr int64_t kPartial = kHeldRows * kTaskRows;
    MatMulRows(context_.level, {down, begin, end, nullptr, count}, shards.border, x,
               {partials, kTaskRows, kPartial}, context_.matmul[static_cast<size_t>(thread)]);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = tokens == nullptr ? first_token + i : tokens[i];
      float* sum = sums + token * kShards * kTaskRows;
      for (int64_t shard = 0; shard < kShards; ++shard) {
        context_.kernels.add_scaled(weights[i], partials + shard * kPartial + i * kTaskRows,
                                    end - begin, sum + shard * kTaskRows);
      }
    }
  }

  const StageContext& context_;
  const MoeWeights& w_;
  const ExpertBuffers& buffers_;
  const ActivationRows& u_;
  const MatrixView<float> y_;
  const int64_t num_tokens_;
  const int64_t inner_size_;
  const int64_t shared_size_;
  ActivationRows inner_rows_, shared_rows_;
  int64_t num_runs_ = 0;
  int32_t num_pairs_ = 0;
};

int64_t SlabBytes(const Weight* weight) {
  return weight == nullptr ? 0 : CpuWeight::From(*weight).slab_bytes();
}

}  // namespace

void MeasureExperts(Scratch& scratch, int num_threads, const StepLimits& limits) {
  if (limits.num_experts == 0) return;
  Scratch::Frame frame(scratch);
  ExpertBuffers(scratch, num_threads, limits.max_rows, limits.top_k, limits.num_experts,
                limits.hidden_size, limits.expert_hidden_size, limits.shared_expert_hidden_size,
                true, true, true);
}

int64_t Experts(const StageContext& context, const MoeWeights& w, MatrixView<const float> u,
                MatrixView<const int32_t> experts, MatrixView<const float> weights,
                MatrixView<float> y) {
  Scratch::Frame frame(context.scratch);
  ExpertBuffers buffers(context.scratch, context.num_threads(), u.rows, experts.cols,
                        w.down->num_slabs(), u.cols, w.down->cols(),
                        w.shared_down == nullptr ? 0 : w.shared_down->cols(),
                        AnyTakesQuantized({w.gate, w.up, w.gate_up, w.shared_gate, w.shared_up}),
                        AnyTakesQuantized({w.down}), AnyTakesQuantized({w.shared_down}));
  FillActivations(context, u, buffers.u);
  const int64_t expert_bytes =
      SlabBytes(w.gate) + SlabBytes(w.up) + SlabBytes(w.gate_up) + SlabBytes(w.down);
  int64_t weight_bytes = 0;
  for (int64_t t = 0; t < u.rows; t += kTileTokens) {
    const int64_t count = std::min(kTileTokens, u.rows - t);
    const ActivationRows some = SomeRows(buffers.u, t, count);
    ExpertsTile tile(context, w, buffers, some, y.Rows(t, count));
    weight_bytes += expert_bytes * tile.Run(experts.Rows(t, count), weights.Rows(t, count));
    weight_bytes += SlabBytes(w.shared_gate) + SlabBytes(w.shared_up) + SlabBytes(w.shared_down) +
                    SlabBytes(w.shared_gate_input);
  }
  return weight_bytes;
}

}  // namespace switchyard::kernels::cpu
