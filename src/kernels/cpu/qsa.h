// Sparse attention: which blocks a row may read.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "base/tensor_view.h"
#include "kernels/cpu/stage_context.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu {

// Scores of blocks that AttentionQkv() computes beside its projections, for the QsaSelect() that
// follows: so decode needs no stage of its own for them.
//
// Call order: Prepare() -> for each layer: Begin(), and if that is true, when the index queries and
//             the block keys of the step are there, Open() -> Matches(), row(), in QsaSelect().
// Threads:    Begin() and what follows the stage from the step thread, Open() from one thread of
// the
//             stage, Work() from any.
class BlockScores {
 public:
  // Rows of a step, at most, that are scored in this way.
  static constexpr int64_t kMaxRows = 8;

  void Prepare(int64_t max_rows, int64_t max_blocks);

  // Says whether the rows of a step are to be scored here. `index_query` and `sequences` stay valid
  // until the end of the stage.
  bool Begin(const StageContext& context, const AttentionShape& shape, const KvLayer& cache,
             absl::Span<const AttentionSequence> sequences, MatrixView<const float> index_query);
  // Lets the others take part, and scores until nothing is left to be begun.
  void Open();
  // Scores what is left to be begun, if it is open already; never waits.
  void Work();

  // Whether these are the scores of these queries; true once.
  bool Take(MatrixView<const float> index_query);
  const float* row(int64_t row) const { return scores_.data() + row * max_blocks_; }

 private:
  std::vector<float> scores_;  // [rows, max_blocks]
  int64_t max_blocks_ = 0;
  int64_t max_rows_ = 0;

  // Of the current stage.
  const StageContext* context_ = nullptr;
  const AttentionShape* shape_ = nullptr;
  const KvLayer* cache_ = nullptr;
  absl::Span<const AttentionSequence> sequences_;
  MatrixView<const float> index_query_;
  bool is_scored_ = false;
  int64_t ranges_per_row_ = 0;
  std::atomic<bool> is_open_{false};
  std::atomic<int64_t> next_range_{0};
};

// Takes the buffers of QsaSelect() for a step of these sizes.
void MeasureQsaSelect(Scratch& scratch, int num_threads, const StepLimits& limits);

// As Backend::QsaSelect. No fork-join while every row may read everything, or where the scores are
// there already and few; else one with many rows, two with few.
void QsaSelect(const StageContext& context, BlockScores& block_scores, const AttentionShape& shape,
               const KvLayer& cache, absl::Span<const AttentionSequence> sequences,
               MatrixView<const float> index_query, const QsaSelection& selection);

// Counters that TopBlocks() works with.
inline constexpr int64_t kTopBlocksCounters = 2048;

// Writes the indices of the `k` largest scores, ascending; of equal scores the lower indices.
// Scores are >= 0.
//
// Shapes: scores [n], counters [kTopBlocksCounters], top [k]; k < n.
void TopBlocks(const float* scores, int64_t n, int64_t k, int32_t* counters, int32_t* top);

}  // namespace switchyard::kernels::cpu
