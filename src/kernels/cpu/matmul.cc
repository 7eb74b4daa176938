#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/panel_dot.h"
#include "kernels/quant/dequantize.h"

namespace switchyard::kernels::cpu {
namespace {

// Panels that are expanded together: a register tile of the wide levels covers two. Two panels of
// 2560 columns are 90 KiB with their factors: they stay in the second-level cache while all
// activation rows pass by.
constexpr int64_t kExpandedPanels = 2;

// Rows of `x` whose partial sums are held at a time, divided by the number of strips of a shard.
constexpr int64_t kShardedRows = 64;
static_assert(kShardedRows >= kMaxShardStrips);

// Activation rows whose products with a part of a panel are held at a time.
constexpr int64_t kEdgeRows = 8;

constexpr int64_t kMaxSegments = 4 * kMaxShardStrips;
constexpr int64_t kFloatBytes = static_cast<int64_t>(sizeof(float));

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The parts of a MatMulScratch, one after another, each on a cache line of its own.
struct ScratchParts {
  explicit ScratchParts(int64_t max_cols)
      : cols(RoundUp(max_cols, kPanelGroup)),
        factor_bytes(cols / 16 * kPanelRows * kFloatBytes),
        panel_bytes(cols * kPanelRows + 2 * factor_bytes) {}

  // Columns and factors of an expanded panel: runs are 16 columns or more.
  int64_t cols;
  int64_t factor_bytes;
  int64_t panel_bytes;
  int64_t row() const { return kExpandedPanels * panel_bytes; }
  int64_t edge() const {
    return row() + RoundUp(cols, 64) + 2 * RoundUp(cols / 16 * kFloatBytes, 64);
  }
  int64_t partials() const { return edge() + kMaxSegments * kEdgeRows * kPanelRows * kFloatBytes; }
  int64_t total() const { return partials() + 4 * kShardedRows * kPanelRows * kFloatBytes + 64; }
};

// Rows of an activation matrix that take part.
struct ActiveRows {
  QuantizedRows x;
  RowSelection rows;

  ActiveRows Some(int64_t first, int64_t count) const {
    if (rows.index == nullptr) return {x.Rows(first, count), {nullptr, count}};
    return {x, {rows.index + first, count}};
  }
};

// Products of one block-format matrix, by windows of kPanelRows rows from row 0 on.
class BlockProducts {
 public:
  BlockProducts(CpuLevel level, const WeightMatrix& w, const Segments& segments,
                MatMulScratch& scratch)
      : functions_(FunctionsOf(level)),
        format_(functions_.format(w.dtype)),
        w_(w),
        segments_(segments),
        parts_(scratch.max_cols()),
        memory_(scratch.data()) {}

  // Writes all rows of `count` windows; those past the last row of the matrix are 0.
  void Windows(int64_t first, int64_t count, const ActiveRows& x, const DotOutput& out) {
    if (w_.in_panels && format_.dot_panels != nullptr) {
      const int64_t panel_bytes = PanelsBytes(w_.dtype, kPanelRows, w_.cols);
      format_.dot_panels({w_.data + first * panel_bytes, panel_bytes, w_.cols, count}, x.x, x.rows,
                         segments_, out);
      return;
    }
    for (int64_t i = 0; i < count; i += kExpandedPanels) {
      const int64_t num_panels = std::min(kExpandedPanels, count - i);
      ExpandedPanel panels[kExpandedPanels];
      for (int64_t p = 0; p < num_panels; ++p) panels[p] = Expand(first + i + p, p);
      functions_.dot_expanded(panels, num_panels, x.x, x.rows, segments_,
                              {out.data + i * kPanelRows, out.row_stride, out.segment_stride});
    }
  }

  // Writes rows [begin, end) of one window, rows of `out` counted from `begin`.
  void Part(int64_t window, int64_t begin, int64_t end, const ActiveRows& x, const DotOutput& out) {
    auto* edge = reinterpret_cast<float*>(memory_ + parts_.edge());
    constexpr int64_t kSegmentStride = kEdgeRows * kPanelRows;
    for (int64_t b = 0; b < x.rows.count; b += kEdgeRows) {
      const int64_t count = std::min<int64_t>(kEdgeRows, x.rows.count - b);
      Windows(window, 1, x.Some(b, count), {edge, kPanelRows, kSegmentStride});
      for (int64_t s = 0; s < segments_.num_segments; ++s) {
        for (int64_t i = 0; i < count; ++i) {
          std::copy_n(edge + s * kSegmentStride + i * kPanelRows + begin - window * kPanelRows,
                      end - begin, out.data + s * out.segment_stride + (b + i) * out.row_stride);
        }
      }
    }
  }

 private:
  ExpandedPanel Expand(int64_t window, int64_t place) {
    std::byte* memory = memory_ + place * parts_.panel_bytes;
    const PanelFormat* const format = FindPanelFormat(w_.dtype);
    ExpandedPanel panel;
    panel.begin = segments_.border[0];
    panel.cols = segments_.border[segments_.num_segments] - panel.begin;
    panel.run_length = format != nullptr ? format->run_length : 16;
    panel.has_minimum = HasMinimum(w_.dtype);
    if (format != nullptr) panel.value_bits = format->value_bits();
    panel.values = reinterpret_cast<uint8_t*>(memory);
    panel.scales = reinterpret_cast<float*>(memory + parts_.cols * kPanelRows);
    panel.minima =
        reinterpret_cast<float*>(memory + parts_.cols * kPanelRows + parts_.factor_bytes);
    if (w_.in_panels) {
      const int64_t panel_bytes = format->panel_bytes(w_.cols);
      format_.expand_panel(w_.data + window * panel_bytes, w_.cols, panel);
    } else {
      ExpandStored(window * kPanelRows, panel);
    }
    return panel;
  }

  // Rows as stored in the file, by the scalar decoders of quant/.
  void ExpandStored(int64_t first_row, const ExpandedPanel& panel) {
    const int64_t row_bytes = RowBytes(w_.dtype, w_.cols);
    const int64_t num_rows = std::min(kPanelRows, w_.rows - first_row);
    const int64_t num_runs = panel.cols / panel.run_length;
    auto* values = reinterpret_cast<int8_t*>(memory_ + parts_.row());
    auto* scales = reinterpret_cast<float*>(values + RoundUp(parts_.cols, 64));
    float* minima = scales + RoundUp(parts_.cols / 16 * kFloatBytes, 64) / kFloatBytes;
    if (num_rows < kPanelRows) {
      std::memset(panel.values, 128, static_cast<size_t>(panel.cols * kPanelRows));
      std::fill_n(panel.scales, num_runs * kPanelRows, 0.0f);
      std::fill_n(panel.minima, num_runs * kPanelRows, 0.0f);
    }
    for (int64_t r = 0; r < num_rows; ++r) {
      const std::byte* row =
          w_.data + (first_row + r) * row_bytes + RowBytes(w_.dtype, panel.begin);
      ExpandRow(w_.dtype, row, panel.cols, values, scales, minima);
      for (int64_t t = 0; t < panel.cols / 4; ++t) {
        uint32_t word;
        std::memcpy(&word, values + 4 * t, sizeof(word));
        word ^= 0x80808080;
        std::memcpy(panel.values + 64 * t + 4 * r, &word, sizeof(word));
      }
      for (int64_t run = 0; run < num_runs; ++run) {
        panel.scales[run * kPanelRows + r] = scales[run * panel.run_length / 16];
        if (!panel.has_minimum) continue;
        panel.minima[run * kPanelRows + r] = minima[run * panel.run_length / 16];
      }
    }
  }

  const LevelFunctions& functions_;
  const FormatFunctions format_;
  const WeightMatrix& w_;
  const Segments& segments_;
  const ScratchParts parts_;
  std::byte* const memory_;
};

}  // namespace

int64_t MatMulScratch::Bytes(int64_t max_cols) { return ScratchParts(max_cols).total(); }

MatMulScratch::MatMulScratch(int64_t max_cols)
    : max_cols_(max_cols),
      data_(static_cast<std::byte*>(
          ::operator new[](static_cast<size_t>(Bytes(max_cols)), std::align_val_t{64}))) {}

void MatMulScratch::Free::operator()(std::byte* data) const {
  ::operator delete[](data, std::align_val_t{64});
}

const LevelFunctions& FunctionsOf(CpuLevel level) {
  switch (level) {
    case CpuLevel::kScalar:
      return kScalarFunctions;
    case CpuLevel::kAvx2:
      return kAvx2Functions;
    case CpuLevel::kAvxVnni:
      return kAvxVnniFunctions;
    case CpuLevel::kAvx512Vnni:
      return kAvx512VnniFunctions;
  }
  SWITCHYARD_CHECK(false);  // a level outside the enumerators is memory corruption
  return kScalarFunctions;
}

void QuantizeActivationRow(CpuLevel level, const float* x, const QuantizedRows& out, int64_t row) {
  SWITCHYARD_DCHECK(row >= 0 && row < out.rows);
  FunctionsOf(level).quantize(x, out, row);
}

void MatMulRows(CpuLevel level, const MatMulTask& task, ColumnBorders borders,
                const ActivationRows& x, PartialSums out, MatMulScratch& scratch) {
  const WeightMatrix& w = task.w;
  SWITCHYARD_DCHECK(borders.size() >= 2 && borders.front() >= 0 && borders.back() <= w.cols);
  SWITCHYARD_DCHECK(std::is_sorted(borders.begin(), borders.end()));
  SWITCHYARD_DCHECK(0 <= task.row_begin && task.row_begin <= task.row_end &&
                    task.row_end <= w.rows);
  SWITCHYARD_DCHECK(scratch.max_cols() >= w.cols);
  const Segments segments = {borders.data(), static_cast<int>(borders.size()) - 1};
  const RowSelection x_rows = {task.x_rows, task.num_x_rows};
  if (task.row_begin == task.row_end || x_rows.count == 0) return;

  const FormatFunctions format = FunctionsOf(level).format(w.dtype);
  if (format.dot_float != nullptr) {
    SWITCHYARD_DCHECK(x.values.cols == w.cols);
    const int64_t row_bytes = RowBytes(w.dtype, w.cols);
    format.dot_float(
        {w.data + task.row_begin * row_bytes, row_bytes, task.row_end - task.row_begin}, x.values,
        x_rows, segments, {out.data, out.row_stride, out.partial_stride});
    return;
  }
  SWITCHYARD_DCHECK(x.quantized.cols == w.cols);
  SWITCHYARD_DCHECK(segments.num_segments <= kMaxSegments);
  SWITCHYARD_DCHECK(std::all_of(borders.begin(), borders.end(), [&](int64_t border) {
    return border % (w.in_panels ? kPanelGroup : Traits(w.dtype).block_length) == 0;
  }));
  const ActiveRows rows = {x.quantized, x_rows};
  BlockProducts products(level, w, segments, scratch);
  const auto out_at = [&](int64_t row) -> DotOutput {
    return {out.data + (row - task.row_begin), out.row_stride, out.partial_stride};
  };
  // Windows that the range covers wholly go straight to the output.
  int64_t row = task.row_begin;
  while (row < task.row_end) {
    const int64_t window = row / kPanelRows;
    const int64_t num_whole =
        row % kPanelRows == 0 ? (task.row_end - row) / kPanelRows : int64_t{0};
    if (num_whole > 0) {
      products.Windows(window, num_whole, rows, out_at(row));
      row += num_whole * kPanelRows;
    } else {
      const int64_t end = std::min((window + 1) * kPanelRows, task.row_end);
      products.Part(window, row, end, rows, out_at(row));
      row = end;
    }
  }
}

int64_t RowsPerTask(const WeightMatrix& w, int num_threads) {
  constexpr int64_t kTaskBytes = 64 * 1024;
  const int64_t row_bytes = std::max<int64_t>(RowBytes(w.dtype, w.cols), 1);  // about
  const int64_t by_bytes = kTaskBytes / row_bytes;
  const int64_t by_threads = w.rows / std::max(num_threads, 1);
  return RoundUp(std::max<int64_t>(std::min(by_bytes, by_threads), 1), kPanelRows);
}

void MatMul(ThreadPool& pool, CpuLevel level, const WeightMatrix& w, const ActivationRows& x,
            MatrixView<float> y, absl::Span<MatMulScratch> scratch) {
  SWITCHYARD_DCHECK(y.cols == w.rows);
  const int64_t rows_per_task = RowsPerTask(w, pool.num_threads());
  const std::array<int64_t, 2> borders = {0, w.cols};
  pool.ParallelFor((w.rows + rows_per_task - 1) / rows_per_task, [&](int64_t task, int thread) {
    const int64_t begin = task * rows_per_task;
    const int64_t end = std::min(begin + rows_per_task, w.rows);
    MatMulRows(level, {w, begin, end, nullptr, y.rows}, borders, x,
               {y.data + begin, y.row_stride, 0}, scratch[static_cast<size_t>(thread)]);
  });
}

void MatMulShardedRows(CpuLevel level, const WeightMatrix& w, int64_t row_begin, int64_t row_end,
                       const ShardBorders& shards, const ActivationRows& x, MatrixView<float> y,
                       MatMulScratch& scratch) {
  const ShardSegments segments = SegmentsOf(shards, w.cols);
  auto* partials =
      reinterpret_cast<float*>(scratch.data() + ScratchParts(scratch.max_cols()).partials());
  // With few activation rows more weight rows at a time: each call costs as much as some columns.
  const int64_t x_at_a_time = std::min(kShardedRows / shards.num_strips, y.rows);
  const int64_t w_at_a_time = kShardedRows / (x_at_a_time * shards.num_strips) * kPanelRows;
  const int64_t partial_stride = x_at_a_time * w_at_a_time;
  for (int64_t r = row_begin; r < row_end; r += w_at_a_time) {
    const int64_t num_rows = std::min(w_at_a_time, row_end - r);
    for (int64_t b = 0; b < y.rows; b += x_at_a_time) {
      const int64_t count = std::min(x_at_a_time, y.rows - b);
      ActivationRows some = x;
      if (x.values.data != nullptr) some.values = x.values.Rows(b, count);
      if (x.quantized.quants != nullptr) some.quantized = x.quantized.Rows(b, count);
      MatMulRows(level, {w, r, r + num_rows, nullptr, count}, segments.borders(), some,
                 {partials, w_at_a_time, partial_stride}, scratch);
      for (int64_t t = 0; t < count; ++t) {
        const float* p = partials + t * w_at_a_time;
        float* y_row = y.row(b + t) + (r - row_begin);
        for (int64_t i = 0; i < num_rows; ++i) {
          float shard[4];
          for (int s = 0; s < 4; ++s) shard[s] = p[i + s * partial_stride];
          for (int s = 4; s < segments.num_segments; ++s) shard[s % 4] += p[i + s * partial_stride];
          y_row[i] = (shard[0] + shard[1]) + (shard[2] + shard[3]);
        }
      }
    }
  }
}

void MatMulSharded(ThreadPool& pool, CpuLevel level, const WeightMatrix& w,
                   const ShardBorders& shards, const ActivationRows& x, MatrixView<float> y,
                   absl::Span<MatMulScratch> scratch) {
  SWITCHYARD_DCHECK(y.cols == w.rows);
  const int64_t rows_per_task = RowsPerTask(w, pool.num_threads());
  pool.ParallelFor((w.rows + rows_per_task - 1) / rows_per_task, [&](int64_t task, int thread) {
    const int64_t begin = task * rows_per_task;
    const int64_t end = std::min(begin + rows_per_task, w.rows);
    MatMulShardedRows(level, w, begin, end, shards, x,
                      {y.data + begin, y.rows, end - begin, y.row_stride},
                      scratch[static_cast<size_t>(thread)]);
  });
}

}  // namespace switchyard::kernels::cpu
