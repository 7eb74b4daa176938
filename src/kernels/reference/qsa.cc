#include "kernels/reference/qsa.h"

#include <algorithm>
#include <numeric>

#include "kernels/kv_layout.h"
#include "kernels/quant/dequantize.h"
#include "kernels/quant/quantize.h"
#include "kernels/reference/math.h"
#include "kernels/reference/weight.h"
#include "kernels/rope.h"

namespace switchyard::kernels::reference {

void StoreIndexKey(const AttentionWeights& w, const AttentionShape& shape, const KvLayer& cache,
                   const AttentionSequence& sequence, int64_t position, const double* index_key,
                   Workspace& workspace) {
  const int64_t size = shape.index_head_dim, ratio = shape.qsa_ratio;
  Convert(index_key, size, sequence.index_ring + position % kIndexRing * size);
  if ((position + 1) % ratio != 0) return;

  const Workspace::Frame frame(workspace);
  double* pooled = workspace.Take<double>(size);
  float* rounded = workspace.Take<float>(size);
  float* cosines = workspace.Take<float>(shape.num_rotary_dims / 2);
  float* sines = workspace.Take<float>(shape.num_rotary_dims / 2);
  const int64_t first = position + 1 - ratio;
  std::fill_n(pooled, size, 0.0);
  for (int64_t p = first; p <= position; ++p) {
    const float* raw = sequence.index_ring + p % kIndexRing * size;
    for (int64_t i = 0; i < size; ++i) pooled[i] += static_cast<double>(raw[i]);
  }
  for (int64_t i = 0; i < size; ++i) pooled[i] /= static_cast<double>(ratio);
  RmsNorm(pooled, Values(w.index_key_norm), static_cast<double>(shape.rms_epsilon), size, pooled);
  RopeAngles(first, shape.num_rotary_dims, shape.rope_base, cosines, sines);
  RopeRotate(shape.num_rotary_dims, cosines, sines, pooled);
  Convert(pooled, size, rounded);
  const KvLayout layout(shape, cache.type);
  QuantizeRow(BlockKeyDType(cache.type), rounded, size,
              cache.block_keys + layout.BlockKey(sequence, first / ratio));
}

void QsaSelect(const AttentionShape& shape, const KvLayer& cache,
               absl::Span<const AttentionSequence> sequences, MatrixView<const float> index_query,
               const QsaSelection& selection, Workspace& workspace) {
  const int64_t size = shape.index_head_dim;
  const KvLayout layout(shape, cache.type);
  const DType dtype = BlockKeyDType(cache.type);
  for (const AttentionSequence& sequence : sequences) {
    for (int r = 0; r < sequence.num_rows; ++r) {
      const int64_t t = sequence.row_begin + r;
      int32_t& count = selection.counts[static_cast<size_t>(t)];
      count = -1;
      if (shape.qsa_ratio == 0) continue;
      const int64_t num_blocks = (sequence.first_position + r + 1) / shape.qsa_ratio;
      const int64_t num_chosen = shape.qsa_budget / shape.qsa_ratio;
      if (num_blocks <= num_chosen) continue;

      const Workspace::Frame frame(workspace);
      double* scores = workspace.Take<double>(num_blocks);
      int32_t* order = workspace.Take<int32_t>(num_blocks);
      float* key = workspace.Take<float>(size);
      for (int64_t block = 0; block < num_blocks; ++block) {
        DequantizeRow(dtype, cache.block_keys + layout.BlockKey(sequence, block), size, key);
        double score = 0;
        for (int64_t head = 0; head < shape.num_index_heads; ++head) {
          // Not max(): a product that is not a number must not break the order below.
          const double product = Dot(index_query.row(t) + head * size, key, size);
          if (product > 0) score += product;
        }
        scores[block] = score;
      }
      std::iota(order, order + num_blocks, 0);
      std::nth_element(order, order + num_chosen, order + num_blocks,
                       [scores](int32_t a, int32_t b) {
                         return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
                       });
      std::sort(order, order + num_chosen);
      std::copy_n(order, num_chosen, selection.blocks.row(t));
      count = static_cast<int32_t>(num_chosen);
    }
  }
}

int64_t StoreIndexKeyWorkspaceBytes(const StepLimits& limits) {
  return TakenBytes<double>(limits.index_head_dim) + 3 * TakenBytes<float>(limits.index_head_dim);
}

int64_t QsaSelectWorkspaceBytes(const StepLimits& limits) {
  if (limits.min_qsa_ratio == 0) return 0;
  const int64_t max_blocks = limits.max_context / limits.min_qsa_ratio;
  return TakenBytes<double>(max_blocks) + TakenBytes<int32_t>(max_blocks) +
         TakenBytes<float>(limits.index_head_dim);
}

}  // namespace switchyard::kernels::reference
