#include "kernels/cpu/attention.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "kernels/kv_layout.h"

namespace switchyard::kernels::cpu {
namespace {

// A row's keys are attended to in chunks of kAttendKeys, in order; some adjacent chunks are a part,
// and the parts of a row are merged in order. How a row is cut depends on its number of keys alone:
// so its result is the same whether its parts are divided over threads or not.
constexpr int64_t kMaxParts = 16;

// Divided are the parts of steps with up to this many pairs of a row and a kv head.
constexpr int64_t kMaxDividedGroups = 8;

// Rows that read the keys of a chunk one after the other, while these are in the cache.
constexpr int64_t kTileRows = 4;

// Heads of one task where threads would have nothing to do otherwise.
constexpr int64_t kFewHeads = 6;

// Keys that a row may read, in the order of positions.
struct RowKeys {
  const AttentionSequence* sequence;
  int64_t end;            // positions of the sequence up to the row itself
  const int32_t* blocks;  // the selected ones; null = all positions
  int64_t num_selected;   // positions in them

  int64_t num_keys;
  int64_t num_chunks;
  int64_t chunks_per_part;
  int64_t num_parts() const { return (num_chunks + chunks_per_part - 1) / chunks_per_part; }
};

RowKeys KeysOf(const AttentionShape& shape, const AttentionSequence& sequence, int64_t row,
               const QsaSelection& selection) {
  RowKeys keys = {};
  keys.sequence = &sequence;
  keys.end = sequence.first_position + row - sequence.row_begin + 1;
  keys.num_keys = keys.end;
  const int32_t count = selection.counts.empty() ? -1 : selection.counts[static_cast<size_t>(row)];
  if (count >= 0) {
    keys.blocks = selection.blocks.row(row);
    keys.num_selected = int64_t{count} * shape.qsa_ratio;
    keys.num_keys = keys.num_selected + keys.end % shape.qsa_ratio;
  }
  keys.num_chunks = (keys.num_keys + kAttendKeys - 1) / kAttendKeys;
  keys.chunks_per_part = (keys.num_chunks + kMaxParts - 1) / kMaxParts;
  return keys;
}

int64_t AttendedFloats(int64_t num_heads, int64_t head_dim) { return num_heads * (head_dim + 2); }

Attended AttendedAt(float* data, int64_t num_heads, int64_t head_dim) {
  return {data, data + num_heads * head_dim, data + num_heads * (head_dim + 1)};
}

int64_t NumParts(int64_t num_keys) {
  return std::min(kMaxParts, (num_keys + kAttendKeys - 1) / kAttendKeys);
}

struct AttentionBuffers {
  int32_t* sequence_of_row;  // [T]
  MatrixView<float> parts;   // [divided groups * parts, attended]
  int32_t* num_finished;     // [divided groups * heads]
  // Per thread.
  MatrixView<KeyRun> runs;     // [kAttendKeys + 1]
  MatrixView<float> scores;    // [heads, kAttendKeys]
  MatrixView<float> attended;  // [2 * kTileRows + 1, attended]

  AttentionBuffers(Scratch& scratch, int num_threads, int64_t rows, int64_t num_groups,
                   int64_t max_parts, int64_t num_heads, int64_t head_dim)
      : sequence_of_row(scratch.Take<int32_t>(rows)),
        parts(
            scratch.TakeMatrix<float>(num_groups * max_parts, AttendedFloats(num_heads, head_dim))),
        num_finished(scratch.Take<int32_t>(num_groups * num_heads)),
        runs(scratch.TakePerThread<KeyRun>(num_threads, kAttendKeys + 1)),
        scores(scratch.TakePerThread<float>(num_threads, num_heads * kAttendKeys)),
        attended(scratch.TakePerThread<float>(
            num_threads, (2 * kTileRows + 1) * AttendedFloats(num_heads, head_dim))) {}
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
      first += count;
    }
  }
  int64_t num_runs() const { return num_runs_; }

 private:
  const KvLayer& cache_;
  const KvLayout& layout_;
  const AttentionSequence& sequence_;
  const int head_;
  KeyRun* runs_;
  int64_t num_runs_ = 0;
};

// Some query heads of one kv head.
struct Heads {
  int64_t kv_head;
  int64_t first;  // of the kv head's
  int64_t count;
};

// One step of one layer.
class AttentionStep {
 public:
  AttentionStep(const StageContext& context, const AttentionShape& shape, const KvLayer& cache,
                absl::Span<const AttentionSequence> sequences, const AttentionInputs& inputs,
                const QsaSelection& selection, MatrixView<float> out,
                const AttentionBuffers& buffers)
      : context_(context),
        shape_(shape),
        cache_(cache),
        layout_(shape, cache.type),
        sequences_(sequences),
        inputs_(inputs),
        selection_(selection),
        out_(out),
        buffers_(buffers),
        heads_per_kv_(shape.group_size()) {}

  // Each task takes all keys of some rows.
  void ByRows() {
    const int64_t num_threads = context_.num_threads();
    const bool tiled = out_.rows * shape_.num_kv_heads >= 4 * num_threads * kTileRows;
    const int64_t rows_per_task = tiled ? kTileRows : 1;
    const int64_t num_tiles = (out_.rows + rows_per_task - 1) / rows_per_task;
    SetHeadsPerTask(num_tiles);
    context_.pool.ParallelFor(num_tiles * num_head_tasks_, [&](int64_t task, int thread) {
      const int64_t begin = task / num_head_tasks_ * rows_per_task;
      AttendRows(begin, std::min(begin + rows_per_task, out_.rows), HeadsOf(task % num_head_tasks_),
                 thread);
    });
  }

  // Each task takes one part of a row; the last one to finish merges them.
  void ByParts(int64_t max_parts) {
    SetHeadsPerTask(out_.rows * max_parts);
    std::fill_n(buffers_.num_finished, out_.rows * num_head_tasks_, 0);
    context_.pool.ParallelFor(out_.rows * num_head_tasks_ * max_parts, [&](int64_t task,
                                                                           int thread) {
      const int64_t group = task / max_parts, part = task % max_parts;
      const int64_t row = group / num_head_tasks_;
      const RowKeys keys = KeysOfRow(row);
      if (part >= keys.num_parts()) return;
      const Heads heads = HeadsOf(group % num_head_tasks_);
      if (heads.count <= 0) return;
      const auto slot = [&](int64_t p) {
        return Place(
            buffers_.parts.row((row * shape_.num_kv_heads + heads.kv_head) * max_parts + p), heads);
      };
      const int64_t begin = part * keys.chunks_per_part;
      const int64_t end = std::min(begin + keys.chunks_per_part, keys.num_chunks);
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        AttendChunk(keys, chunk, row, heads, chunk == begin, slot(part), thread);
      }
      std::atomic_ref<int32_t> num_finished(buffers_.num_finished[group]);
      if (num_finished.fetch_add(1, std::memory_order_acq_rel) + 1 < keys.num_parts()) return;
      for (int64_t p = 1; p < keys.num_parts(); ++p) Merge(slot(p), heads, slot(0));
      Finish(slot(0), row, heads);
    });
  }

  RowKeys KeysOfRow(int64_t row) const {
    return KeysOf(shape_, sequences_[static_cast<size_t>(buffers_.sequence_of_row[row])], row,
                  selection_);
  }

 private:
  // All heads of a kv head share a task and so its keys, unless threads would have nothing to do.
  void SetHeadsPerTask(int64_t num_row_tasks) {
    const bool share = num_row_tasks * shape_.num_kv_heads >= 2 * context_.num_threads();
    heads_per_task_ = share ? heads_per_kv_ : std::min(kFewHeads, heads_per_kv_);
    tasks_per_kv_ = (heads_per_kv_ + heads_per_task_ - 1) / heads_per_task_;
    num_head_tasks_ = tasks_per_kv_ * shape_.num_kv_heads;
  }
  // None where fewer of a kv head's query heads are here than heads_per_kv_.
  Heads HeadsOf(int64_t head_task) const {
    const int64_t first = head_task % tasks_per_kv_ * heads_per_task_;
    const int64_t kv_head = head_task / tasks_per_kv_;
    return {kv_head, first, std::min(heads_per_task_, NumHeads(kv_head) - first)};
  }
  int64_t NumHeads(int64_t kv_head) const {
    const int head = static_cast<int>(kv_head);
    return shape_.end_head_of(head) - shape_.first_head_of(head);
  }

  // Where these heads are in the memory of all heads of a kv head.
  Attended Place(float* data, const Heads& heads) const {
    const Attended all = AttendedAt(data, heads_per_kv_, shape_.head_dim);
    return {all.sums + heads.first * shape_.head_dim, all.max + heads.first,
            all.total + heads.first};
  }
  Attended Own(int thread, int64_t index, const Heads& heads) const {
    return Place(
        buffers_.attended.row(thread) + index * AttendedFloats(heads_per_kv_, shape_.head_dim),
        heads);
  }

  // Chunk by chunk, and each chunk by all of the rows.
  void AttendRows(int64_t begin, int64_t end, const Heads& heads, int thread) {
    if (heads.count <= 0) return;
    RowKeys keys[kTileRows];
    int64_t num_chunks = 0;
    for (int64_t row = begin; row < end; ++row) {
      keys[row - begin] = KeysOfRow(row);
      num_chunks = std::max(num_chunks, keys[row - begin].num_chunks);
    }
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      for (int64_t i = 0; i < end - begin; ++i) {
        if (chunk >= keys[i].num_chunks) continue;
        const int64_t per_part = keys[i].chunks_per_part;
        // The first part becomes the result, to which the others are added.
        const Attended result = Own(thread, 1 + 2 * i, heads);
        const Attended part = chunk < per_part ? result : Own(thread, 2 + 2 * i, heads);
        AttendChunk(keys[i], chunk, begin + i, heads, chunk % per_part == 0, part, thread);
        const bool part_ends = (chunk + 1) % per_part == 0 || chunk + 1 == keys[i].num_chunks;
        if (chunk >= per_part && part_ends) Merge(part, heads, result);
      }
    }
    for (int64_t i = 0; i < end - begin; ++i) {
      Finish(Own(thread, 1 + 2 * i, heads), begin + i, heads);
    }
  }

  void AttendChunk(const RowKeys& keys, int64_t chunk, int64_t row, const Heads& heads,
                   bool is_first, const Attended& part, int thread) {
    const int64_t begin = chunk * kAttendKeys;
    const int64_t end = std::min(begin + kAttendKeys, keys.num_keys);
    RunList runs(cache_, layout_, *keys.sequence, static_cast<int>(heads.kv_head),
                 buffers_.runs.row(thread));
    if (keys.blocks == nullptr) {
      runs.Add(begin, end);
    } else {
      const int64_t ratio = shape_.qsa_ratio;
      static_assert(kAttendKeys % kPageTokens == 0);  // so blocks lie in one chunk
      for (int64_t i = begin; i < std::min(end, keys.num_selected); i += ratio) {
        const int64_t block = keys.blocks[i / ratio];
        runs.Add(block * ratio, (block + 1) * ratio);
      }
      if (end > keys.num_selected) runs.Add(keys.end / ratio * ratio, keys.end);
    }
    AttendTask task;
    static_cast<Attended&>(task) = is_first ? part : Own(thread, 0, heads);
    task.type = cache_.type;
    task.head_dim = shape_.head_dim;
    task.num_heads = heads.count;
    task.query = inputs_.query.row(row) + FirstHead(heads) * shape_.head_dim;
    task.runs = buffers_.runs.row(thread);
    task.num_runs = runs.num_runs();
    task.num_keys = end - begin;
    task.scores = buffers_.scores.row(thread);
    context_.kernels.attend(task);
    if (!is_first) Merge(task, heads, part);
  }

  void Merge(const Attended& from, const Heads& heads, const Attended& into) const {
    context_.kernels.merge_attended(from, heads.count, shape_.head_dim, into);
  }

  void Finish(const Attended& result, int64_t row, const Heads& heads) const {
    const int64_t at = FirstHead(heads) * shape_.head_dim;
    context_.kernels.finish_attended(result, heads.count, shape_.head_dim,
                                     shape_.output_gate ? inputs_.gate.row(row) + at : nullptr,
                                     out_.row(row) + at);
  }

  int64_t FirstHead(const Heads& heads) const {
    return shape_.first_head_of(static_cast<int>(heads.kv_head)) + heads.first;
  }

  const StageContext& context_;
  const AttentionShape& shape_;
  const KvLayer& cache_;
  const KvLayout layout_;
  const absl::Span<const AttentionSequence> sequences_;
  const AttentionInputs& inputs_;
  const QsaSelection& selection_;
  const MatrixView<float> out_;
  const AttentionBuffers& buffers_;
  const int64_t heads_per_kv_;
  int64_t heads_per_task_ = 0;
  int64_t tasks_per_kv_ = 0;
  int64_t num_head_tasks_ = 0;
};

}  // namespace

void MeasureAttention(Scratch& scratch, int num_threads, const StepLimits& limits) {
  if (limits.num_heads == 0) return;
  Scratch::Frame frame(scratch);
  AttentionBuffers(scratch, num_threads, limits.max_rows, num_threads == 1 ? 0 : kMaxDividedGroups,
                   NumParts(limits.max_context), limits.num_heads, limits.head_dim);
}

void Attention(const StageContext& context, const AttentionShape& shape, const KvLayer& cache,
               absl::Span<const AttentionSequence> sequences, const AttentionInputs& inputs,
               const QsaSelection& selection, MatrixView<float> out) {
  Scratch::Frame frame(context.scratch);
  int64_t max_keys = 0;
  for (const AttentionSequence& sequence : sequences) {
    int64_t num_keys = sequence.first_position + sequence.num_rows;
    if (!selection.counts.empty()) {
      // Rows below the budget read all, the others the budget and an incomplete block.
      num_keys = std::min(num_keys, (selection.blocks.cols + 1) * shape.qsa_ratio);
    }
    max_keys = std::max(max_keys, num_keys);
  }
  const int64_t num_groups = out.rows * shape.num_kv_heads, max_parts = NumParts(max_keys);
  const bool divide = context.num_threads() > 1 && num_groups <= kMaxDividedGroups && max_parts > 1;
  AttentionBuffers buffers(context.scratch, context.num_threads(), out.rows,
                           divide ? num_groups : 0, max_parts, shape.group_size(), shape.head_dim);
  MapRows(sequences, buffers.sequence_of_row);
  AttentionStep step(context, shape, cache, sequences, inputs, selection, out, buffers);
  divide ? step.ByParts(max_parts) : step.ByRows();
}

}  // namespace switchyard::kernels::cpu
