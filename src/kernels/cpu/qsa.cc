#include "kernels/cpu/qsa.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kernels/cpu/attention.h"
#include "kernels/kv_layout.h"

namespace switchyard::kernels::cpu {
namespace {

// Blocks that one task scores where a row is divided over threads: whole pages for every ratio.
constexpr int64_t kScoreBlocks = 512;

// A step of fewer rows than this, per thread, divides its rows.
constexpr int64_t kRowsPerThread = 2;

struct QsaBuffers {
  int32_t* sequence_of_row;      // [T]
  MatrixView<int32_t> counters;  // per thread [kTopBlocksCounters]
  // Per thread, or with few rows per row [blocks].
  MatrixView<float> scores;

  QsaBuffers(Scratch& scratch, int num_threads, int64_t rows, int64_t max_blocks)
      : sequence_of_row(scratch.Take<int32_t>(rows)),
        counters(scratch.TakePerThread<int32_t>(num_threads, kTopBlocksCounters)),
        scores(scratch.TakeMatrix<float>(kRowsPerThread * num_threads, max_blocks)) {}
};

int64_t NumVisible(const AttentionSequence& sequence, int64_t row) {
  return sequence.first_position + row - sequence.row_begin + 1;
}

// Scores the blocks [begin, end) of a sequence, page by page. Pages lie anywhere, so those that
// follow are asked for ahead of time.
void ScoreRange(const StageContext& context, const AttentionShape& shape, const KvLayer& cache,
                const KvLayout& layout, const AttentionSequence& sequence, const float* query,
                int64_t begin, int64_t end, float* scores) {
  constexpr int64_t kPagesAhead = 2, kLineBytes = 64;
  const int64_t per_page = kPageTokens / shape.qsa_ratio;
  while (begin < end) {
    const int64_t count = std::min(end - begin, per_page - begin % per_page);
    const int64_t later = (begin / per_page + kPagesAhead) * per_page;
    if (later < end) {
      const std::byte* keys = cache.block_keys + layout.BlockKey(sequence, later);
      const int64_t bytes = std::min(per_page, end - later) * layout.block_key_bytes;
      for (int64_t i = 0; i < bytes; i += kLineBytes) __builtin_prefetch(keys + i);
    }
    context.kernels.score_blocks(query, shape.num_index_heads, shape.index_head_dim,
                                 cache.block_keys + layout.BlockKey(sequence, begin),
                                 cache.type == KvType::kF32, count, scores + begin);
    begin += count;
  }
}

// Blocks of the longest row.
int64_t MaxBlocks(absl::Span<const AttentionSequence> sequences, int64_t ratio) {
  int64_t max_blocks = 0;
  for (const AttentionSequence& sequence : sequences) {
    max_blocks = std::max(max_blocks, (sequence.first_position + sequence.num_rows) / ratio);
  }
  return max_blocks;
}

}  // namespace

void BlockScores::Prepare(int64_t max_rows, int64_t max_blocks) {
  max_rows_ = std::min(max_rows, kMaxRows);
  max_blocks_ = max_blocks;
  scores_.assign(static_cast<size_t>(max_rows_ * max_blocks), 0.0f);
}

bool BlockScores::Begin(const StageContext& context, const AttentionShape& shape,
                        const KvLayer& cache, absl::Span<const AttentionSequence> sequences,
                        MatrixView<const float> index_query) {
  is_scored_ = false;
  const int64_t max_blocks = MaxBlocks(sequences, shape.qsa_ratio);
  if (index_query.rows > max_rows_ || max_blocks <= shape.qsa_budget / shape.qsa_ratio) {
    return false;
  }
  SWITCHYARD_CHECK(max_blocks <= max_blocks_);
  context_ = &context;
  shape_ = &shape;
  cache_ = &cache;
  sequences_ = sequences;
  index_query_ = index_query;
  is_scored_ = true;
  ranges_per_row_ = (max_blocks + kScoreBlocks - 1) / kScoreBlocks;
  is_open_.store(false, std::memory_order_relaxed);
  next_range_.store(0, std::memory_order_relaxed);
  return true;
}

void BlockScores::Open() {
  is_open_.store(true, std::memory_order_release);
  Work();
}

void BlockScores::Work() {
  if (!is_open_.load(std::memory_order_acquire)) return;
  const KvLayout layout(*shape_, cache_->type);
  const int64_t num_ranges = index_query_.rows * ranges_per_row_;
  for (;;) {
    const int64_t range = next_range_.fetch_add(1, std::memory_order_relaxed);
    if (range >= num_ranges) return;
    const int64_t row = range / ranges_per_row_, begin = range % ranges_per_row_ * kScoreBlocks;
    const AttentionSequence& sequence =
        *std::find_if(sequences_.begin(), sequences_.end(), [row](const AttentionSequence& s) {
          return s.row_begin <= row && row < int64_t{s.row_begin} + s.num_rows;
        });
    const int64_t end =
        std::min(begin + kScoreBlocks, NumVisible(sequence, row) / shape_->qsa_ratio);
    ScoreRange(*context_, *shape_, *cache_, layout, sequence, index_query_.row(row), begin, end,
               scores_.data() + row * max_blocks_);
  }
}

bool BlockScores::Take(MatrixView<const float> index_query) {
  const bool matches =
      is_scored_ && index_query.data == index_query_.data && index_query.rows == index_query_.rows;
  is_scored_ = false;
  return matches;
}

// Radix selection on the bits, which for floats >= 0 are ordered as their values: three passes find
// the k-th largest score, a last one collects what is above it and enough of what equals it.
void TopBlocks(const float* scores, int64_t n, int64_t k, int32_t* counters, int32_t* top) {
  struct Digit {
    int shift;
    int bits;
  };
  constexpr Digit kDigits[] = {{21, 11}, {10, 11}, {0, 10}};
  uint32_t prefix = 0;     // digits of the k-th largest so far
  int64_t num_wanted = k;  // still to be taken among the scores that share the prefix
  for (const Digit& digit : kDigits) {
    const int high = digit.shift + digit.bits;
    std::fill_n(counters, int64_t{1} << digit.bits, 0);
    const uint32_t mask = (1u << digit.bits) - 1;
    for (int64_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(scores[i]);
      const bool same = high == 32 || bits >> high == prefix >> high;
      counters[bits >> digit.shift & mask] += same;
    }
    uint32_t value = mask;
    while (counters[value] < num_wanted) num_wanted -= counters[value--];
    prefix |= value << digit.shift;
  }
  int64_t num_equal = num_wanted;
  for (int64_t i = 0, taken = 0; taken < k; ++i) {
    SWITCHYARD_DCHECK(i < n);
    const auto bits = std::bit_cast<uint32_t>(scores[i]);
    if (bits < prefix || (bits == prefix && num_equal-- <= 0)) continue;
    top[taken++] = static_cast<int32_t>(i);
  }
}

void MeasureQsaSelect(Scratch& scratch, int num_threads, const StepLimits& limits) {
  if (limits.min_qsa_ratio == 0) return;
  Scratch::Frame frame(scratch);
  QsaBuffers(scratch, num_threads, limits.max_rows, limits.max_context / limits.min_qsa_ratio);
}

void QsaSelect(const StageContext& context, BlockScores& block_scores, const AttentionShape& shape,
               const KvLayer& cache, absl::Span<const AttentionSequence> sequences,
               MatrixView<const float> index_query, const QsaSelection& selection) {
  const int64_t budget = selection.blocks.cols, rows = index_query.rows;
  std::fill(selection.counts.begin(), selection.counts.end(), -1);
  const bool are_scored = block_scores.Take(index_query);
  const int64_t max_blocks = MaxBlocks(sequences, shape.qsa_ratio);
  if (max_blocks <= budget) return;

  Scratch::Frame frame(context.scratch);
  QsaBuffers buffers(context.scratch, context.num_threads(), rows, max_blocks);
  MapRows(sequences, buffers.sequence_of_row);
  const KvLayout layout(shape, cache.type);
  const auto sequence_of = [&](int64_t row) -> const AttentionSequence& {
    return sequences[static_cast<size_t>(buffers.sequence_of_row[row])];
  };
  const auto num_blocks = [&](int64_t row) {
    return NumVisible(sequence_of(row), row) / shape.qsa_ratio;
  };
  const auto score = [&](int64_t row, int64_t begin, int64_t end, float* scores) {
    ScoreRange(context, shape, cache, layout, sequence_of(row), index_query.row(row), begin, end,
               scores);
  };
  const auto select = [&](int64_t row, const float* scores, int thread) {
    TopBlocks(scores, num_blocks(row), budget, buffers.counters.row(thread),
              selection.blocks.row(row));
    selection.counts[static_cast<size_t>(row)] = static_cast<int32_t>(budget);
  };

  if (are_scored) {
    ForEach(context, rows, max_blocks, [&](int64_t row, int thread) {
      if (num_blocks(row) > budget) select(row, block_scores.row(row), thread);
    });
    return;
  }
  if (rows > buffers.scores.rows) {
    context.pool.ParallelFor(rows, [&](int64_t row, int thread) {
      if (num_blocks(row) <= budget) return;
      float* scores = buffers.scores.row(thread);
      score(row, 0, num_blocks(row), scores);
      select(row, scores, thread);
    });
    return;
  }
  const int64_t ranges = (max_blocks + kScoreBlocks - 1) / kScoreBlocks;
  context.pool.ParallelFor(rows * ranges, [&](int64_t task, int) {
    const int64_t row = task / ranges, begin = task % ranges * kScoreBlocks;
    if (num_blocks(row) <= budget) return;
    score(row, begin, std::min(begin + kScoreBlocks, num_blocks(row)), buffers.scores.row(row));
  });
  ForEach(context, rows, max_blocks, [&](int64_t row, int thread) {
    if (num_blocks(row) > budget) select(row, buffers.scores.row(row), thread);
  });
}

}  // namespace switchyard::kernels::cpu
