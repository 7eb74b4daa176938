// Softmax attention over the paged cache: projections and softmax.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "base/tensor_view.h"
#include "kernels/cpu/qsa.h"
#include "kernels/cpu/stage_context.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu {

// Cosines and sines of the rows of a step. All layers of a step ask for the same positions, so they
// are computed once: by the first layer.
//
// Threads: Prepare() and Bind() from the step thread; RowAngles() from any, each row from one.
class RopeCache {
 public:
  void Prepare(int64_t max_rows, int64_t max_rotary_dims);
  // Sets the frequencies of the next calls; what was computed for others is dropped.
  void Bind(int num_rotary_dims, float base);

  struct Angles {
    const float* cosines;  // [num_rotary_dims / 2]
    const float* sines;
  };
  Angles RowAngles(int64_t row, int64_t position);
  // Computes angles without keeping them. Shapes: cosines and sines [num_rotary_dims / 2].
  void ComputeAngles(int64_t position, float* cosines, float* sines) const;

 private:
  int num_rotary_dims_ = 0;
  float base_ = 0;
  std::vector<double> frequencies_;
  std::vector<int64_t> positions_;  // of each row, -1 = not computed
  std::vector<float> angles_;       // [rows, 2, stride_]
  int64_t stride_ = 0;
};

// Take the buffers of the functions below for a step of these sizes.
void MeasureAttentionQkv(Scratch& scratch, int num_threads, const StepLimits& limits);
void MeasureAttention(Scratch& scratch, int num_threads, const StepLimits& limits);

// As Backend::AttentionQkv. One fork-join for the projections and, with few rows, the scores of
// blocks; with many rows one more for norms, rotation and the cache. Returns the bytes of weights
// read.
int64_t AttentionQkv(const StageContext& context, RopeCache& rope, BlockScores& block_scores,
                     const AttentionWeights& w, const AttentionShape& shape, const KvLayer& cache,
                     absl::Span<const AttentionSequence> sequences, MatrixView<const float> u,
                     const AttentionInputs& out);

// As Backend::Attention. One fork-join; with few rows their keys are divided over the threads.
void Attention(const StageContext& context, const AttentionShape& shape, const KvLayer& cache,
               absl::Span<const AttentionSequence> sequences, const AttentionInputs& inputs,
               const QsaSelection& selection, MatrixView<float> out);

// Fills sequence_of_row[row] with the index of the sequence that the row belongs to.
void MapRows(absl::Span<const AttentionSequence> sequences, int32_t* sequence_of_row);

}  // namespace switchyard::kernels::cpu
