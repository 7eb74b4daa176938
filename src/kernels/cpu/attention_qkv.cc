#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_weight.h"
#include "kernels/cpu/products.h"
#include "kernels/kv_layout.h"

namespace switchyard::kernels::cpu {
namespace {

struct QkvBuffers {
  MatrixView<float> query;      // [T, num_heads * 2 * head_dim]: with output gate
  MatrixView<float> key;        // [T, num_kv_heads * head_dim]
  MatrixView<float> value;      // as key
  MatrixView<float> index_key;  // [T, index_head_dim]
  int32_t* sequence_of_row;     // [T]
  MatrixView<float> block_key;  // per thread [index_head_dim]
  MatrixView<float> angles;     // per thread [num_rotary_dims]
  ActivationRows u;

  QkvBuffers(Scratch& scratch, int num_threads, int64_t rows, int64_t query_values,
             int64_t key_values, int64_t index_head_dim, int64_t num_rotary_dims,
             int64_t hidden_size, bool quantized)
      : query(scratch.TakeMatrix<float>(rows, query_values)),
        key(scratch.TakeMatrix<float>(rows, key_values)),
        value(scratch.TakeMatrix<float>(rows, key_values)),
        index_key(scratch.TakeMatrix<float>(rows, index_head_dim)),
        sequence_of_row(scratch.Take<int32_t>(rows)),
        block_key(scratch.TakePerThread<float>(num_threads, index_head_dim)),
        angles(scratch.TakePerThread<float>(num_threads, num_rotary_dims)),
        u(TakeActivations(scratch, rows, hidden_size, quantized)) {}
};

// What happens to one row after the projections.
class RowTask {
 public:
  RowTask(const StageContext& context, RopeCache& rope, const AttentionWeights& w,
          const AttentionShape& shape, const KvLayer& cache, const QkvBuffers& buffers,
          const AttentionInputs& out)
      : kernels_(context.kernels),
        rope_(rope),
        w_(w),
        shape_(shape),
        cache_(cache),
        layout_(shape, cache.type),
        buffers_(buffers),
        out_(out) {}

  void Run(const AttentionSequence& sequence, int64_t row) const {
    const int64_t position = sequence.first_position + row - sequence.row_begin;
    const RopeCache::Angles angles = rope_.RowAngles(row, position);
    StoreQuery(row, angles);
    StoreKeyValue(sequence, position, row, angles);
  }

  // The part that selecting blocks needs. REQUIRES: a sparse layer.
  void RunIndex(const AttentionSequence& sequence, int64_t row, int thread) const {
    const int64_t position = sequence.first_position + row - sequence.row_begin;
    const RopeCache::Angles angles = rope_.RowAngles(row, position);
    float* query = out_.index_query.row(row);
    for (int a = 0; a < shape_.num_index_heads; ++a, query += shape_.index_head_dim) {
      Normalize(query, w_.index_query_norm, shape_.index_head_dim, query);
      Rotate(angles, query);
    }
    if ((position + 1) % shape_.qsa_ratio == 0) {
      StoreBlockKey(sequence, position / shape_.qsa_ratio, thread);
    }
  }

 private:
  // Some models do without norms; then `x` is copied.
  void Normalize(const float* x, const Weight* norm, int64_t dim, float* to) const {
    if (norm == nullptr) {
      if (x != to) std::memcpy(to, x, static_cast<size_t>(dim) * sizeof(float));
      return;
    }
    kernels_.rms_norm(x, CpuWeight::From(*norm).values(), dim, shape_.rms_epsilon, to);
  }
  void Rotate(const RopeCache::Angles& angles, float* x) const {
    kernels_.rotate(angles.cosines, angles.sines, shape_.num_rotary_dims / 2, x);
  }

  void StoreQuery(int64_t row, const RopeCache::Angles& angles) const {
    const int64_t dim = shape_.head_dim;
    const int64_t stride = shape_.output_gate ? 2 * dim : dim;
    for (int64_t head = 0; head < shape_.num_heads; ++head) {
      const float* from = (shape_.output_gate ? buffers_.query : out_.query).row(row);
      float* query = out_.query.row(row) + head * dim;
      Normalize(from + head * stride, w_.query_norm, dim, query);
      Rotate(angles, query);
      if (!shape_.output_gate) continue;
      std::memcpy(out_.gate.row(row) + head * dim, from + head * stride + dim,
                  static_cast<size_t>(dim) * sizeof(float));
    }
  }

  void StoreKeyValue(const AttentionSequence& sequence, int64_t position, int64_t row,
                     const RopeCache::Angles& angles) const {
    const int64_t dim = shape_.head_dim;
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      float* key = buffers_.key.row(row) + head * dim;
      Normalize(key, w_.key_norm, dim, key);
      Rotate(angles, key);
      const int64_t offset = layout_.Row(sequence, head, position);
      kernels_.store_kv(cache_.type, key, dim, cache_.keys + offset);
      kernels_.store_kv(cache_.type, buffers_.value.row(row) + head * dim, dim,
                        cache_.values + offset);
    }
  }

  // Mean of the block's raw keys, tokens ascending, then norm, then rotation to the position of
  // the block's first token.
  void StoreBlockKey(const AttentionSequence& sequence, int64_t block, int thread) const {
    const int64_t dim = shape_.index_head_dim, first = block * shape_.qsa_ratio;
    float* mean = buffers_.block_key.row(thread);
    std::memset(mean, 0, static_cast<size_t>(dim) * sizeof(float));
    for (int64_t position = first; position < first + shape_.qsa_ratio; ++position) {
      const float* raw =
          position < sequence.first_position
              ? sequence.index_ring + position % kIndexRing * dim
              : buffers_.index_key.row(sequence.row_begin + position - sequence.first_position);
      kernels_.add_scaled(1.0f, raw, dim, mean);
    }
    kernels_.scale(1.0f / static_cast<float>(shape_.qsa_ratio), mean, dim, mean);
    Normalize(mean, w_.index_key_norm, dim, mean);
    float* cosines = buffers_.angles.row(thread);
    float* sines = cosines + shape_.num_rotary_dims / 2;
    rope_.ComputeAngles(first, cosines, sines);
    Rotate({cosines, sines}, mean);
    const KvType type = cache_.type == KvType::kF32 ? KvType::kF32 : KvType::kF16;
    kernels_.store_kv(type, mean, dim, cache_.block_keys + layout_.BlockKey(sequence, block));
  }

  const StageKernels& kernels_;
  RopeCache& rope_;
  const AttentionWeights& w_;
  const AttentionShape& shape_;
  const KvLayer& cache_;
  const KvLayout layout_;
  const QkvBuffers& buffers_;
  const AttentionInputs& out_;
};

// Raw keys of the newest tokens, for blocks that later steps complete.
void KeepRawKeys(const AttentionSequence& sequence, MatrixView<const float> index_key) {
  const int64_t first = std::max<int64_t>(0, sequence.num_rows - kIndexRing);
  for (int64_t row = first; row < sequence.num_rows; ++row) {
    const int64_t slot = (sequence.first_position + row) % kIndexRing;
    std::memcpy(sequence.index_ring + slot * index_key.cols,
                index_key.row(sequence.row_begin + row),
                static_cast<size_t>(index_key.cols) * sizeof(float));
  }
}

}  // namespace

void RopeCache::Prepare(int64_t max_rows, int64_t max_rotary_dims) {
  stride_ = (max_rotary_dims / 2 + 15) / 16 * 16;
  positions_.assign(static_cast<size_t>(max_rows), -1);
  angles_.assign(static_cast<size_t>(max_rows * 2 * stride_), 0.0f);
  frequencies_.assign(static_cast<size_t>(max_rotary_dims / 2), 0.0);
  num_rotary_dims_ = 0;
}

void RopeCache::Bind(int num_rotary_dims, float base) {
  if (num_rotary_dims == num_rotary_dims_ && base == base_) return;
  SWITCHYARD_CHECK(num_rotary_dims / 2 <= static_cast<int64_t>(frequencies_.size()));
  num_rotary_dims_ = num_rotary_dims;
  base_ = base;
  for (int i = 0; i < num_rotary_dims / 2; ++i) {  // as RopeAngles() in kernels/rope.h
    frequencies_[static_cast<size_t>(i)] =
        std::pow(static_cast<double>(base), -2.0 * i / static_cast<double>(num_rotary_dims));
  }
  std::fill(positions_.begin(), positions_.end(), -1);
}

RopeCache::Angles RopeCache::RowAngles(int64_t row, int64_t position) {
  float* cosines = angles_.data() + row * 2 * stride_;
  float* sines = cosines + stride_;
  int64_t& kept = positions_[static_cast<size_t>(row)];
  if (kept != position) {
    ComputeAngles(position, cosines, sines);
    kept = position;
  }
  return {cosines, sines};
}

void RopeCache::ComputeAngles(int64_t position, float* cosines, float* sines) const {
  for (int i = 0; i < num_rotary_dims_ / 2; ++i) {
    const double angle = static_cast<double>(position) * frequencies_[static_cast<size_t>(i)];
    cosines[i] = static_cast<float>(std::cos(angle));
    sines[i] = static_cast<float>(std::sin(angle));
  }
}

void MapRows(absl::Span<const AttentionSequence> sequences, int32_t* sequence_of_row) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    std::fill_n(sequence_of_row + sequences[i].row_begin, sequences[i].num_rows,
                static_cast<int32_t>(i));
  }
}

void MeasureAttentionQkv(Scratch& scratch, int num_threads, const StepLimits& limits) {
  if (limits.num_heads == 0) return;
  Scratch::Frame frame(scratch);
  // As many kv heads as query heads at most.
  const int64_t values = limits.num_heads * limits.head_dim;
  QkvBuffers(scratch, num_threads, limits.max_rows, 2 * values, values, limits.index_head_dim,
             limits.head_dim, limits.hidden_size, true);
}

int64_t AttentionQkv(const StageContext& context, RopeCache& rope, BlockScores& block_scores,
                     const AttentionWeights& w, const AttentionShape& shape, const KvLayer& cache,
                     absl::Span<const AttentionSequence> sequences, MatrixView<const float> u,
                     const AttentionInputs& out) {
  Scratch::Frame frame(context.scratch);
  const bool sparse = shape.qsa_ratio != 0;
  QkvBuffers buffers(context.scratch, context.num_threads(), u.rows, w.query->rows(), w.key->rows(),
                     sparse ? shape.index_head_dim : 0, shape.num_rotary_dims, u.cols,
                     AnyTakesQuantized({w.query, w.key, w.value, sparse ? w.index_query : nullptr,
                                        sparse ? w.index_key : nullptr}));
  FillActivations(context, u, buffers.u);
  ProductGroup products(context);
  // First, since the scores of blocks wait for them.
  int64_t num_index_rows = 0;
  if (sparse) {
    products.Add(w.index_query, out.index_query);
    products.Add(w.index_key, buffers.index_key);
    num_index_rows = w.index_query->rows() + w.index_key->rows();
  }
  products.Add(w.query, shape.output_gate ? buffers.query : out.query);
  products.Add(w.key, buffers.key);
  products.Add(w.value, buffers.value);

  rope.Bind(shape.num_rotary_dims, shape.rope_base);
  MapRows(sequences, buffers.sequence_of_row);
  const RowTask task(context, rope, w, shape, cache, buffers, out);
  const auto sequence_of = [&](int64_t row) -> const AttentionSequence& {
    return sequences[static_cast<size_t>(buffers.sequence_of_row[row])];
  };
  const bool scores =
      sparse && block_scores.Begin(context, shape, cache, sequences, out.index_query);
  std::atomic<int64_t> num_index_rows_left{num_index_rows};
  const auto score = [&](int product, int64_t begin, int64_t end, int thread) {
    if (!scores || product > 1) return;
    if (num_index_rows_left.fetch_sub(end - begin, std::memory_order_acq_rel) > end - begin) return;
    for (int64_t row = 0; row < u.rows; ++row) task.RunIndex(sequence_of(row), row, thread);
    block_scores.Open();
  };
  products.Run(buffers.u, score, scores ? context.num_threads() : 0,
               [&](int) { block_scores.Work(); });

  ForEach(context, u.rows, 2 * (w.query->rows() + w.key->rows()), [&](int64_t row, int thread) {
    task.Run(sequence_of(row), row);
    if (sparse && !scores) task.RunIndex(sequence_of(row), row, thread);
  });
  if (sparse) {
    for (const AttentionSequence& sequence : sequences) KeepRawKeys(sequence, buffers.index_key);
  }
  return products.weight_bytes();
}

}  // namespace switchyard::kernels::cpu
