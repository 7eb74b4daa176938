#include "kernels/cpu/matmul.h"

#include <algorithm>
#include <new>

#include "base/check.h"
#include "kernels/cpu/row_dot.h"
#include "kernels/quant/dequantize.h"

namespace switchyard::kernels::cpu {
namespace {

// Weight rows that are expanded together. 16 rows of 2560 columns are 60 KiB with their factors:
// they stay in the second-level cache while all activation rows pass by.
constexpr int64_t kPanelRows = 16;

// Rows of `x` whose partial sums are held at a time, divided by the number of strips of a shard.
constexpr int64_t kShardedRows = 64;
static_assert(kShardedRows >= kMaxShardStrips);

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Columns of an expanded panel; one vector more, because a segment may start in the middle of one.
int64_t PanelStride(int64_t cols) { return RoundUp(cols, 64) + 64; }

int64_t PanelBytes(int64_t max_cols) {
  const int64_t stride = PanelStride(max_cols);
  return kPanelRows * (stride + 2 * (stride / 16) * static_cast<int64_t>(sizeof(float)));
}

ExpandedRows PlacePanel(std::byte* memory, int64_t num_rows, int64_t begin, int64_t cols,
                        bool has_minimum) {
  ExpandedRows panel;
  panel.num_rows = num_rows;
  panel.begin = begin;
  panel.stride = PanelStride(cols);
  panel.has_minimum = has_minimum;
  panel.values = reinterpret_cast<int8_t*>(memory);
  panel.scales = reinterpret_cast<float*>(memory + kPanelRows * panel.stride);
  panel.minima = panel.scales + kPanelRows * (panel.stride / 16);
  return panel;
}

// The general way to expand, for types without a function of their own.
void ExpandAny(DType dtype, const StoredRows& w, int64_t end, const ExpandedRows& out) {
  const int64_t offset = RowBytes(dtype, out.begin);
  for (int64_t r = 0; r < w.num_rows; ++r) {
    ExpandRow(dtype, w.data + r * w.row_bytes + offset, end - out.begin,
              out.values + r * out.stride, out.scales + r * (out.stride / 16),
              out.minima + r * (out.stride / 16));
  }
}

}  // namespace

int64_t MatMulScratch::Bytes(int64_t max_cols) {
  return RoundUp(PanelBytes(max_cols), 64) +
         4 * kShardedRows * kPanelRows * static_cast<int64_t>(sizeof(float)) + 64;
}

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
      return kAvx2Functions;
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
  const LevelFunctions& functions = FunctionsOf(level);
  const FormatFunctions format = functions.format(w.dtype);
  const Segments segments = {borders.data(), static_cast<int>(borders.size()) - 1};
  const RowSelection x_rows = {task.x_rows, task.num_x_rows};
  const int64_t row_bytes = RowBytes(w.dtype, w.cols);
  const int64_t num_rows = task.row_end - task.row_begin;
  if (num_rows == 0 || x_rows.count == 0) return;

  const std::byte* data = w.data + task.row_begin * row_bytes;
  const DotOutput dot_out = {out.data, out.row_stride, out.partial_stride};
  if (format.dot_float != nullptr) {
    SWITCHYARD_DCHECK(x.values.cols == w.cols);
    format.dot_float({data, row_bytes, num_rows}, x.values, x_rows, segments, dot_out);
    return;
  }
  SWITCHYARD_DCHECK(x.quantized.cols == w.cols);
  SWITCHYARD_DCHECK(std::all_of(borders.begin(), borders.end(), [&](int64_t border) {
    return border % Traits(w.dtype).block_length == 0;
  }));
  if (x_rows.count == 1 && format.dot_stored != nullptr) {
    format.dot_stored({data, row_bytes, num_rows}, x.quantized, x_rows[0], segments, dot_out);
    return;
  }
  const int64_t begin = borders.front();
  const int64_t end = borders.back();
  const bool has_minimum = HasMinimum(w.dtype);
  for (int64_t r = 0; r < num_rows; r += kPanelRows) {
    const StoredRows rows = {data + r * row_bytes, row_bytes, std::min(kPanelRows, num_rows - r)};
    const ExpandedRows panel =
        PlacePanel(scratch.data(), rows.num_rows, begin, end - begin, has_minimum);
    if (format.expand != nullptr) {
      format.expand(rows, end, panel);
    } else {
      ExpandAny(w.dtype, rows, end, panel);
    }
    functions.dot_expanded(panel, x.quantized, x_rows, segments,
                           {out.data + r, out.row_stride, out.partial_stride});
  }
}

int64_t RowsPerTask(const WeightMatrix& w, int num_threads) {
  constexpr int64_t kTaskBytes = 64 * 1024;
  const int64_t row_bytes = std::max<int64_t>(RowBytes(w.dtype, w.cols), 1);
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
  // The expanded panel lies in front of the partial sums.
  auto* partials =
      reinterpret_cast<float*>(scratch.data() + RoundUp(PanelBytes(scratch.max_cols()), 64));
  const int64_t rows_at_a_time = kShardedRows / shards.num_strips;
  const int64_t partial_stride = rows_at_a_time * kPanelRows;
  for (int64_t r = row_begin; r < row_end; r += kPanelRows) {
    const int64_t r_end = std::min(r + kPanelRows, row_end);
    for (int64_t b = 0; b < y.rows; b += rows_at_a_time) {
      const int64_t count = std::min(rows_at_a_time, y.rows - b);
      ActivationRows some = x;
      if (x.values.data != nullptr) some.values = x.values.Rows(b, count);
      if (x.quantized.quants != nullptr) some.quantized = x.quantized.Rows(b, count);
      MatMulRows(level, {w, r, r_end, nullptr, count}, segments.borders(), some,
                 {partials, kPanelRows, partial_stride}, scratch);
      for (int64_t t = 0; t < count; ++t) {
        const float* p = partials + t * kPanelRows;
        float* y_row = y.row(b + t) + (r - row_begin);
        for (int64_t i = 0; i < r_end - r; ++i) {
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
