#include "kernels/cpu/attention.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/kv_layout.h"

namespace switchyard::kernels::cpu {
namespace {

// Runs of keys that one row may read: pages, selected blocks, and the incomplete tail.
int64_t MaxRuns(int64_t max_context, int64_t budget_blocks) {
  return (max_context + kPageTokens - 1) / kPageTokens + budget_blocks + 2;
}

struct AttentionBuffers {
  int32_t* sequence_of_row;  // [T]
  // Per thread.
  MatrixView<KeyRun> runs;
  MatrixView<float> scores;  // [kAttendHeads, keys]

  AttentionBuffers(Scratch& scratch, int num_threads, int64_t rows, int64_t max_context,
                   int64_t budget_blocks)
      : sequence_of_row(scratch.Take<int32_t>(rows)),
        runs(scratch.TakePerThread<KeyRun>(num_threads, MaxRuns(max_context, budget_blocks))),
        scores(scratch.TakePerThread<float>(num_threads, kAttendHeads * max_context)) {}
};

// Collects adjacent tokens of one kv head.
class RunList {
 public:
  RunList(const KvLayer& cache, const KvLayout& layout, const AttentionSequence& sequence, int head,
          KeyRun* runs)
      : cache_(cache), layout_(layout), sequence_(sequence), head_(head), runs_(runs) {}

  // Adds the tokens [first, end), split at page borders. Calls ascend.
  void Add(int64_t first, int64_t end) {
    while (first < end) {
      const int64_t count = std::min(end - first, kPageTokens - first % kPageTokens);
      const int64_t offset = layout_.Row(sequence_, head_, first);
      KeyRun* last = num_runs_ == 0 ? nullptr : &runs_[num_runs_ - 1];
      if (last != nullptr && first % kPageTokens != 0 &&
          last->keys + last->count * layout_.row_bytes == cache_.keys + offset) {
        last->count += count;
      } else {
        runs_[num_runs_++] = {cache_.keys + offset, cache_.values + offset, count};
      }
      num_keys_ += count;
      first += count;
    }
  }
  int64_t num_runs() const { return num_runs_; }
  int64_t num_keys() const { return num_keys_; }

 private:
  const KvLayer& cache_;
  const KvLayout& layout_;
  const AttentionSequence& sequence_;
  const int head_;
  KeyRun* runs_;
  int64_t num_runs_ = 0;
  int64_t num_keys_ = 0;
};

}  // namespace

void MeasureAttention(Scratch& scratch, int num_threads, const StepLimits& limits) {
  if (limits.num_heads == 0) return;
  Scratch::Frame frame(scratch);
  AttentionBuffers(scratch, num_threads, limits.max_rows, limits.max_context,
                   limits.qsa_budget_blocks);
}

void Attention(const StageContext& context, const AttentionShape& shape, const KvLayer& cache,
               absl::Span<const AttentionSequence> sequences, const AttentionInputs& inputs,
               const QsaSelection& selection, MatrixView<float> out) {
  Scratch::Frame frame(context.scratch);
  int64_t max_context = 0;
  for (const AttentionSequence& sequence : sequences) {
    max_context = std::max(max_context, sequence.first_position + sequence.num_rows);
  }
  AttentionBuffers buffers(context.scratch, context.num_threads(), out.rows, max_context,
                           selection.blocks.cols);
  MapRows(sequences, buffers.sequence_of_row);
  const KvLayout layout(shape, cache.type);
  const int64_t heads_per_kv = shape.num_heads / shape.num_kv_heads;
  // Heads of one kv head share a task and so its keys, unless threads would have nothing to do.
  const bool share = out.rows * shape.num_kv_heads >= 4 * context.num_threads();
  const int64_t heads_per_task =
      share ? heads_per_kv : std::min<int64_t>(kAttendHeads, heads_per_kv);
  const int64_t tasks_per_kv = (heads_per_kv + heads_per_task - 1) / heads_per_task;
  const int64_t tasks_per_row = tasks_per_kv * shape.num_kv_heads;

  context.pool.ParallelFor(out.rows * tasks_per_row, [&](int64_t index, int thread) {
    const int64_t row = index / tasks_per_row;
    const int64_t kv_head = index % tasks_per_row / tasks_per_kv;
    const int64_t first = index % tasks_per_kv * heads_per_task;
    const int64_t head = kv_head * heads_per_kv + first;
    const auto& sequence = sequences[static_cast<size_t>(buffers.sequence_of_row[row])];
    const int64_t end = sequence.first_position + row - sequence.row_begin + 1;

    KeyRun* runs = buffers.runs.row(thread);
    RunList list(cache, layout, sequence, static_cast<int>(kv_head), runs);
    const int32_t count =
        selection.counts.empty() ? -1 : selection.counts[static_cast<size_t>(row)];
    if (count < 0) {
      list.Add(0, end);
    } else {
      const int64_t ratio = shape.qsa_ratio;
      const int32_t* blocks = selection.blocks.row(row);
      for (int32_t i = 0; i < count; ++i) list.Add(blocks[i] * ratio, (blocks[i] + 1) * ratio);
      list.Add(end / ratio * ratio, end);
    }

    AttendTask task;
    task.type = cache.type;
    task.head_dim = shape.head_dim;
    task.num_heads = std::min(heads_per_task, heads_per_kv - first);
    task.query = inputs.query.row(row) + head * shape.head_dim;
    if (shape.output_gate) task.gate = inputs.gate.row(row) + head * shape.head_dim;
    task.out = out.row(row) + head * shape.head_dim;
    task.runs = runs;
    task.num_runs = list.num_runs();
    task.num_keys = list.num_keys();
    task.scores = buffers.scores.row(thread);
    context.kernels.attend(task);
  });
}

}  // namespace switchyard::kernels::cpu
