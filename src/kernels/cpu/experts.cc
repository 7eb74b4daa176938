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

// Weight rows of one task. Longer ranges of adjacent rows are faster to read, since each costs the
// memory a start; more tasks end closer together. In decode 64 rows of a gate are about 90 KiB.
// Tasks are whole panels, and those of an inner width whole groups of 32, which they quantise.
constexpr int64_t kMinInnerRows = kGroupLength;
constexpr int64_t kMaxInnerRows = 64;
constexpr int64_t kMinDownRows = 16;
constexpr int64_t kMaxDownRows = 128;
constexpr int64_t kTasksPerThread = 16;
// Products that a task holds at a time: 64 KiB, which stay in the second-level cache.
constexpr int64_t kHeldFloats = 16384;
// Room for the sums of a task: for one token the most rows, for many the fewest.
constexpr int64_t SumFloats(int64_t num_tokens) {
  return kShards * std::max(num_tokens * kMinDownRows * 2, kMaxDownRows);
}

// (token, expert) pairs of one expert, tokens ascending.
struct ExpertRun {
  int32_t begin;  // of its pairs
  int32_t count;
  // Of the fast tier: the slab in memory; of the slow one: that of the source.
  int32_t slab;
  bool in_fast_tier;
};

// Rows of the weights of experts in the slow tier that a task holds at a time: those of gate and up
// or of down.
int64_t StoredTaskBytes(DType gate_type, int64_t hidden_size, DType down_type, int64_t inner_size) {
  return std::max(2 * CpuWeight::StoredBytes(gate_type, kMaxInnerRows, hidden_size),
                  CpuWeight::StoredBytes(down_type, kMaxDownRows, inner_size));
}

struct ExpertBuffers {
  MatrixView<float> inner;         // [pairs, expert_hidden_size]
  MatrixView<float> shared_inner;  // [tokens, shared_expert_hidden_size]
  float* shared_weight;            // [tokens]
  int32_t* cursor;                 // [num_experts]
  ExpertRun* runs;                 // [chosen experts]
  int32_t* token;                  // [pairs]
  float* weight;                   // [pairs]
  // Per thread.
  MatrixView<float> held;        // gate and up [2, rows, task rows], or partial sums
                                 // [rows, kShards, task rows]
  MatrixView<float> sums;        // [tokens, kShards, task rows]
  MatrixView<std::byte> stored;  // rows of an expert in the slow tier
  ActivationRows u, inner_rows, shared_rows;

  ExpertBuffers(Scratch& scratch, int num_threads, int64_t rows, int64_t top_k, int64_t num_experts,
                int64_t hidden_size, int64_t inner_size, int64_t shared_size, int64_t stored_bytes,
                bool quantized, bool inner_quantized, bool shared_quantized)
      : inner(scratch.TakeMatrix<float>(std::min(rows, kTileTokens) * top_k, inner_size)),
        shared_inner(scratch.TakeMatrix<float>(std::min(rows, kTileTokens), shared_size)),
        shared_weight(scratch.Take<float>(std::min(rows, kTileTokens))),
        cursor(scratch.Take<int32_t>(num_experts)),
        runs(scratch.Take<ExpertRun>(std::min(num_experts, inner.rows))),
        token(scratch.Take<int32_t>(inner.rows)),
        weight(scratch.Take<float>(inner.rows)),
        held(scratch.TakePerThread<float>(num_threads, kHeldFloats)),
        sums(scratch.TakePerThread<float>(num_threads, SumFloats(shared_inner.rows))),
        stored(scratch.TakePerThread<std::byte>(num_threads, stored_bytes)),
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

// The weight rows of a matrix stay in order and next to each other in memory: asks for the first
// lines of the rows from `row` on while something else is computed.
void PrefetchRows(const Weight& weight, int64_t slab, int64_t row) {
  constexpr int64_t kLineBytes = 64, kHeadBytes = 4096;
  const CpuWeight& w = CpuWeight::From(weight);
  const std::byte* slab_begin = w.matrix(slab).data;
  const int64_t begin = w.slab_bytes() / w.rows() * row;
  const int64_t end = std::min(begin + kHeadBytes, w.slab_bytes());
  for (int64_t i = begin; i < end; i += kLineBytes) __builtin_prefetch(slab_begin + i);
}

// Multiples of `step` from `min` to `max`: as many rows as leave each thread kTasksPerThread tasks.
int64_t TaskRows(int64_t total_rows, int num_threads, int64_t min, int64_t max) {
  return std::clamp(total_rows / (num_threads * kTasksPerThread) / min * min, min, max);
}

int64_t NumTasks(int64_t rows, int64_t rows_per_task) {
  return (rows + rows_per_task - 1) / rows_per_task;
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

  // Returns the bytes of the experts' weights that were read.
  int64_t Run(MatrixView<const int32_t> experts, MatrixView<const float> weights) {
    Sort(experts, weights);
    inner_rows_ = buffers_.inner_rows;
    inner_rows_.values = buffers_.inner.Rows(0, num_pairs_);
    shared_rows_ = buffers_.shared_rows;
    shared_rows_.values = buffers_.shared_inner.Rows(0, num_tokens_);
    GateAndUp();
    Down();
    return ReadBytes();
  }

 private:
  // Two matrices whose rows belong together, `up` from its row `up_row` on.
  struct GateUp {
    const Weight& gate;
    const Weight& up;
    int64_t slab;
    int64_t up_row;
    bool in_fast_tier = true;
  };
  struct RowRange {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
  };
  // Rows of a matrix for a product.
  struct MatrixRows {
    WeightMatrix matrix;
    RowRange rows;
  };

  // Rows `rows` of a slab: in memory, or read into `buffer`. What cannot be read is a fault of the
  // backend, and counts as zeros.
  MatrixRows RowsOf(const Weight& weight, int64_t slab, bool in_fast_tier, RowRange rows,
                    std::byte* buffer) {
    const CpuWeight& w = CpuWeight::From(weight);
    if (in_fast_tier) return {w.matrix(slab), rows};
    MatrixRows stored;
    context_.fault.Report(w.ReadStored(slab, rows.begin, rows.end, buffer, stored.matrix));
    stored.rows = {0, rows.size()};
    return stored;
  }

  void SetPlace(int64_t expert, ExpertRun& run) const {
    run.slab = static_cast<int32_t>(w_.slot_of(expert));
    run.in_fast_tier = true;
    if (w_.resident_slots.empty()) return;
    const int32_t slot = w_.resident_slots[static_cast<size_t>(expert)];
    run.in_fast_tier = slot >= 0;
    if (slot >= 0) run.slab = slot;
  }

  int64_t ReadBytes() const {
    int64_t bytes = 0;
    for (const Weight* weight : {w_.gate, w_.up, w_.gate_up, w_.down}) {
      if (weight == nullptr) continue;
      const CpuWeight& w = CpuWeight::From(*weight);
      for (int64_t r = 0; r < num_runs_; ++r) {
        bytes += buffers_.runs[r].in_fast_tier ? w.slab_bytes() : w.stored_slab_bytes();
      }
    }
    return bytes;
  }

  // Counting sort of the pairs by expert; tokens stay in order. Experts that are not here are left
  // out.
  void Sort(MatrixView<const int32_t> experts, MatrixView<const float> weights) {
    const int64_t num_experts = w_.num_experts();
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
      const int64_t slab = w_.slot_of(e);
      if (slab < 0) cursor[e] = -1;
      if (count == 0 || slab < 0) continue;
      ExpertRun& run = buffers_.runs[num_runs_++];
      run.begin = num_pairs_;
      run.count = count;
      SetPlace(e, run);
      if (w_.use_counts != nullptr) w_.use_counts[e] += static_cast<uint32_t>(count);
      num_pairs_ += count;
    }
    for (int64_t t = 0; t < num_tokens_; ++t) {
      for (int64_t i = 0; i < experts.cols; ++i) {
        int32_t& next = cursor[experts.row(t)[i]];
        if (next < 0) continue;
        const int32_t pair = next++;
        buffers_.token[pair] = static_cast<int32_t>(t);
        buffers_.weight[pair] = weights.row(t)[i];
      }
    }
  }

  void GateAndUp() {
    const int64_t total_rows = num_runs_ * inner_size_ + shared_size_;
    const int64_t rows = TaskRows(total_rows, context_.num_threads(), kMinInnerRows, kMaxInnerRows);
    const int64_t blocks = NumTasks(inner_size_, rows);
    const int64_t routed_tasks = num_runs_ * blocks;
    const int64_t shared_tasks = NumTasks(shared_size_, rows);
    const int64_t gate_tasks = shared_size_ == 0 ? 0 : 1;
    const auto inner_task = [&](int64_t task, int thread) {
      if (task < routed_tasks) {
        const int64_t begin = task % blocks * rows;
        RoutedInner(buffers_.runs[task / blocks], {begin, std::min(begin + rows, inner_size_)},
                    thread);
      } else {
        const int64_t begin = (task - routed_tasks) * rows;
        SharedInner({begin, std::min(begin + rows, shared_size_)}, thread);
      }
    };
    context_.pool.ParallelFor(gate_tasks + routed_tasks + shared_tasks,
                              [&](int64_t task, int thread) {
                                if (task < gate_tasks) return SharedWeights();
                                inner_task(task - gate_tasks, thread);
                              });
  }

  // silu(gate u) * (up u) for some inner rows of one expert.
  void RoutedInner(const ExpertRun& run, RowRange range, int thread) {
    const bool fused = w_.gate_up != nullptr;
    const GateUp weights = {fused ? *w_.gate_up : *w_.gate, fused ? *w_.gate_up : *w_.up, run.slab,
                            fused ? inner_size_ : 0, run.in_fast_tier};
    Inner(weights, range, buffers_.token + run.begin, u_, run.count, run.begin, inner_rows_,
          buffers_.inner, thread);
  }

  void SharedInner(RowRange range, int thread) {
    Inner({*w_.shared_gate, *w_.shared_up, 0, 0}, range, nullptr, u_, num_tokens_, 0, shared_rows_,
          buffers_.shared_inner, thread);
  }

  // Computes the columns `range` of the rows [first_row, first_row + count) of `inner`, and
  // quantises them if `quantized` has room. Row i is that of x_rows[i], or of i.
  void Inner(const GateUp& weights, RowRange range, const int32_t* x_rows, const ActivationRows& x,
             int64_t count, int64_t first_row, const ActivationRows& quantized,
             MatrixView<float> inner, int thread) {
    if (weights.in_fast_tier) {
      PrefetchRows(weights.up, weights.slab, weights.up_row + range.begin);
    }
    std::byte* const stored = buffers_.stored.row(thread);
    const MatrixRows gate = RowsOf(weights.gate, weights.slab, weights.in_fast_tier, range, stored);
    const MatrixRows up = RowsOf(weights.up, weights.slab, weights.in_fast_tier,
                                 {weights.up_row + range.begin, weights.up_row + range.end},
                                 stored + buffers_.stored.cols / 2);
    const std::array<int64_t, 2> borders = {0, gate.matrix.cols};
    MatMulScratch& scratch = context_.matmul[static_cast<size_t>(thread)];
    const int64_t size = range.size();
    const int64_t rows_at_once = kHeldFloats / (2 * size);
    float* gates = buffers_.held.row(thread);
    float* ups = gates + rows_at_once * size;
    for (int64_t i = 0; i < count; i += rows_at_once) {
      const int64_t num_rows = std::min(rows_at_once, count - i);
      const int32_t* some = x_rows == nullptr ? nullptr : x_rows + i;
      const ActivationRows from = x_rows == nullptr ? SomeRows(x, i, num_rows) : x;
      MatMulRows(context_.level, {gate.matrix, gate.rows.begin, gate.rows.end, some, num_rows},
                 borders, from, {gates, size, 0}, scratch);
      MatMulRows(context_.level, {up.matrix, up.rows.begin, up.rows.end, some, num_rows}, borders,
                 from, {ups, size, 0}, scratch);
      for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t row = first_row + i + r;
        float* out = inner.row(row) + range.begin;
        context_.kernels.silu_mul(gates + r * size, ups + r * size, size, out);
        if (quantized.quantized.quants == nullptr) continue;
        QuantizeActivationRow(context_.level, out,
                              quantized.quantized.Columns(row, range.begin, range.end), 0);
      }
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

  void Down() {
    const int64_t hidden_size = y_.cols;
    // Sums of many tokens have room for few rows each.
    const int64_t max_rows = SumFloats(num_tokens_) / (kShards * num_tokens_);
    const int64_t rows = TaskRows(hidden_size, context_.num_threads(), kMinDownRows,
                                  std::min(kMaxDownRows, max_rows / kMinDownRows * kMinDownRows));
    context_.pool.ParallelFor(NumTasks(hidden_size, rows), [&](int64_t task, int thread) {
      const int64_t begin = task * rows;
      DownRows({begin, std::min(begin + rows, hidden_size)}, thread);
    });
  }

  // Some output elements of all tokens: experts ascending, the shared one last.
  void DownRows(RowRange range, int thread) {
    const int64_t size = range.size();
    float* sums = buffers_.sums.row(thread);
    std::memset(sums, 0, static_cast<size_t>(num_tokens_ * kShards * size) * sizeof(float));
    for (int64_t r = 0; r < num_runs_; ++r) {
      const ExpertRun& run = buffers_.runs[r];
      if (r + 1 < num_runs_) {
        const ExpertRun& next = buffers_.runs[r + 1];
        if (next.in_fast_tier) PrefetchRows(*w_.down, next.slab, range.begin);
      } else if (shared_size_ != 0) {
        PrefetchRows(*w_.shared_down, 0, range.begin);
      }
      AddDown(*w_.down, run.slab, run.in_fast_tier, range, w_.down_shards,
              SomeRows(inner_rows_, run.begin, run.count), run.count, buffers_.token + run.begin,
              buffers_.weight + run.begin, sums, thread);
    }
    if (shared_size_ != 0) {
      AddDown(*w_.shared_down, 0, true, range, w_.shared_down_shards, shared_rows_, num_tokens_,
              nullptr, buffers_.shared_weight, sums, thread);
    }
    for (int64_t t = 0; t < num_tokens_; ++t) {
      const float* sum = sums + t * kShards * size;
      context_.kernels.sum4(sum, sum + size, sum + 2 * size, sum + 3 * size, size,
                            y_.row(t) + range.begin);
    }
  }

  // sums[token, shard] += weight * partial product of the shard. Row i of `x` belongs to
  // tokens[i], or to token i.
  void AddDown(const Weight& weight, int64_t slab, bool in_fast_tier, RowRange range,
               const ShardBorders& shards, const ActivationRows& x, int64_t count,
               const int32_t* tokens, const float* weights, float* sums, int thread) {
    SWITCHYARD_DCHECK(shards.num_strips == 1);  // an inner width has no heads
    const MatrixRows down = RowsOf(weight, slab, in_fast_tier, range, buffers_.stored.row(thread));
    // All shards of a row are adjacent, as in the sums.
    const int64_t size = range.size(), row_floats = kShards * size;
    const int64_t rows_at_once = kHeldFloats / row_floats;
    float* partials = buffers_.held.row(thread);
    for (int64_t i = 0; i < count; i += rows_at_once) {
      const int64_t num_rows = std::min(rows_at_once, count - i);
      MatMulRows(context_.level, {down.matrix, down.rows.begin, down.rows.end, nullptr, num_rows},
                 shards.border, SomeRows(x, i, num_rows), {partials, row_floats, size},
                 context_.matmul[static_cast<size_t>(thread)]);
      for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t token = tokens == nullptr ? i + r : tokens[i + r];
        context_.kernels.add_scaled(weights[i + r], partials + r * row_floats, row_floats,
                                    sums + token * row_floats);
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

// Room for rows of experts in the slow tier; 0 = the tensors have no tiers.
int64_t StoredBytesOf(const MoeWeights& w) {
  if (w.resident_slots.empty()) return 0;
  const Weight& gate = w.gate_up != nullptr ? *w.gate_up : *w.gate;
  const DType wider =
      w.up != nullptr && RowBytes(w.up->dtype(), gate.cols()) > RowBytes(gate.dtype(), gate.cols())
          ? w.up->dtype()
          : gate.dtype();
  return StoredTaskBytes(wider, gate.cols(), w.down->dtype(), w.down->cols());
}

}  // namespace

void MeasureExperts(Scratch& scratch, int num_threads, const StepLimits& limits) {
  if (limits.num_experts == 0) return;
  Scratch::Frame frame(scratch);
  ExpertBuffers(
      scratch, num_threads, limits.max_rows, limits.top_k, limits.num_experts, limits.hidden_size,
      limits.expert_hidden_size, limits.shared_expert_hidden_size,
      StoredTaskBytes(DType::kF32, limits.hidden_size, DType::kF32, limits.expert_hidden_size),
      true, true, true);
}

int64_t Experts(const StageContext& context, const MoeWeights& w, MatrixView<const float> u,
                MatrixView<const int32_t> experts, MatrixView<const float> weights,
                MatrixView<float> y) {
  Scratch::Frame frame(context.scratch);
  ExpertBuffers buffers(context.scratch, context.num_threads(), u.rows, experts.cols,
                        w.num_experts(), u.cols, w.down->cols(),
                        w.shared_down == nullptr ? 0 : w.shared_down->cols(), StoredBytesOf(w),
                        AnyTakesQuantized({w.gate, w.up, w.gate_up, w.shared_gate, w.shared_up}),
                        AnyTakesQuantized({w.down}), AnyTakesQuantized({w.shared_down}));
  FillActivations(context, u, buffers.u);
  int64_t weight_bytes = 0;
  for (int64_t t = 0; t < u.rows; t += kTileTokens) {
    const int64_t count = std::min(kTileTokens, u.rows - t);
    const ActivationRows some = SomeRows(buffers.u, t, count);
    ExpertsTile tile(context, w, buffers, some, y.Rows(t, count));
    weight_bytes += tile.Run(experts.Rows(t, count), weights.Rows(t, count));
    weight_bytes += SlabBytes(w.shared_gate) + SlabBytes(w.shared_up) + SlabBytes(w.shared_down) +
                    SlabBytes(w.shared_gate_input);
  }
  return weight_bytes;
}

}  // namespace switchyard::kernels::cpu
