#include "kernels/cpu/cpu_weight.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/status_macros.h"
#include "kernels/cpu/panel.h"

namespace switchyard::kernels::cpu {
namespace {

// Vector loads of the last elements of a tensor may read this far beyond it.
constexpr int64_t kPaddingBytes = 64;

// Rows are read in pieces of about this size, which stay in the second-level cache until packed.
constexpr int64_t kReadBytes = 512 << 10;

bool IsDecoded(WeightUse use) { return use == WeightUse::kVector || use == WeightUse::kConvTaps; }

absl::Status ReadRows(const WeightSource& source, int64_t first, int64_t count, std::byte* out) {
  if (source.read) return source.read(first, count, out);
  const int64_t row_bytes = source.view.row_bytes();
  std::memcpy(out, source.view.data + first * row_bytes, static_cast<size_t>(count * row_bytes));
  return absl::OkStatus();
}

// The first error of tasks that run on several threads; later tasks then do nothing.
class FirstError {
 public:
  template <typename Work>
  void Run(Work&& work) {
    if (failed_.load(std::memory_order_relaxed)) return;
    absl::Status status = work();
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
    failed_.store(true, std::memory_order_relaxed);
  }
  // To be called after the tasks.
  absl::Status Take() { return std::move(status_); }

 private:
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  absl::Status status_;
};

// Runs the tasks on the pool or, without one, one after the other.
template <typename Body>
void ForEachTask(ThreadPool* pool, int64_t num_tasks, Body&& body) {
  if (pool != nullptr) return pool->ParallelFor(num_tasks, body);
  for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
}

}  // namespace

bool GrowsInPanels(DType dtype) { return dtype == DType::kIQ3_S || dtype == DType::kIQ3_XXS; }

WeightLayout ChooseLayout(const TensorView& view, WeightUse use, bool recode) {
  WeightLayout layout;
  layout.dtype = IsDecoded(use) ? DType::kF32 : view.dtype;
  layout.tap_major = use == WeightUse::kConvTaps;
  layout.in_panels = HasPanels(layout.dtype) && (recode || !GrowsInPanels(layout.dtype));
  layout.slab_bytes = layout.in_panels ? PanelsBytes(layout.dtype, view.rows, view.cols)
                                       : view.rows * RowBytes(layout.dtype, view.cols);
  layout.bytes = view.num_slabs * layout.slab_bytes;
  return layout;
}

CpuWeight::CpuWeight(const TensorView& view, const WeightLayout& layout)
    : Weight(view.dtype, view.num_slabs, view.rows, view.cols), layout_(layout) {
  resident_bytes_ = layout.bytes;
}

int64_t CpuWeight::ArenaBytesOf(const WeightRequest& request, bool recode) {
  TensorView fast = request.view;
  fast.num_slabs = request.num_slots.value_or(fast.num_slabs);
  return ArenaBytes(ChooseLayout(fast, request.use, recode).bytes + kPaddingBytes);
}

absl::StatusOr<std::unique_ptr<CpuWeight>> CpuWeight::Load(const WeightSource& source,
                                                           WeightUse use, bool recode, Arena* arena,
                                                           ThreadPool& pool) {
  TensorView fast = source.view;
  fast.num_slabs = source.num_slots.value_or(fast.num_slabs);
  const WeightLayout layout = ChooseLayout(fast, use, recode);
  auto weight = std::unique_ptr<CpuWeight>(new CpuWeight(source.view, layout));
  weight->num_slots_ = fast.num_slabs;
  const int64_t bytes = layout.bytes + kPaddingBytes;
  if (arena != nullptr && arena->capacity_bytes() - arena->used_bytes() >= ArenaBytes(bytes)) {
    weight->data_ = arena->Allocate(bytes);
  } else {
    SWITCHYARD_ASSIGN_OR_RETURN(Arena own, Arena::Create(ArenaBytes(bytes), {}));
    weight->own_ = std::move(own);
    weight->data_ = weight->own_->Allocate(bytes);
  }
  if (source.num_slots.has_value()) {
    weight->source_ = source;
  } else if (IsDecoded(use)) {
    SWITCHYARD_RETURN_IF_ERROR(weight->LoadFloats(source));
  } else if (layout.in_panels) {
    SWITCHYARD_RETURN_IF_ERROR(
        weight->LoadPanels(source, 0, weight->num_slabs_, weight->data_, &pool));
  } else {
    SWITCHYARD_RETURN_IF_ERROR(
        weight->LoadStored(source, 0, weight->num_slabs_, weight->data_, &pool));
    if (use == WeightUse::kMatrix) weight->NarrowIfExact();
  }
  return weight;
}

absl::Status CpuWeight::LoadStored(const WeightSource& source, int64_t first, int64_t count,
                                   std::byte* out, ThreadPool* pool) const {
  const int64_t first_row = first * rows_, num_rows = count * rows_;
  const int64_t row_bytes = RowBytes(layout_.dtype, cols_);
  const int64_t rows_at_once = std::clamp<int64_t>(kReadBytes / row_bytes, 1, num_rows);
  FirstError error;
  ForEachTask(pool, (num_rows + rows_at_once - 1) / rows_at_once, [&](int64_t task, int) {
    const int64_t row = task * rows_at_once;
    const int64_t some = std::min(rows_at_once, num_rows - row);
    error.Run([&] { return ReadRows(source, first_row + row, some, out + row * row_bytes); });
  });
  return error.Take();
}

absl::Status CpuWeight::LoadPanels(const WeightSource& source, int64_t first, int64_t count,
                                   std::byte* out, ThreadPool* pool) const {
  const int64_t row_bytes = RowBytes(layout_.dtype, cols_);
  const int64_t panel_bytes = PanelsBytes(layout_.dtype, kPanelRows, cols_);
  const int64_t panels_per_slab = (rows_ + kPanelRows - 1) / kPanelRows;
  const int64_t panels_at_once =
      std::clamp<int64_t>(kReadBytes / (row_bytes * kPanelRows), 1, panels_per_slab);
  const int64_t tasks_per_slab = (panels_per_slab + panels_at_once - 1) / panels_at_once;
  std::vector<std::vector<std::byte>> stored(
      pool == nullptr ? size_t{1} : static_cast<size_t>(pool->num_threads()));
  FirstError error;
  ForEachTask(pool, count * tasks_per_slab, [&](int64_t task, int thread) {
    const int64_t slab = task / tasks_per_slab;
    const int64_t panel_begin = task % tasks_per_slab * panels_at_once;
    const int64_t panel_end = std::min(panel_begin + panels_at_once, panels_per_slab);
    const int64_t row_begin = panel_begin * kPanelRows;
    const int64_t row_end = std::min(panel_end * kPanelRows, rows_);
    std::vector<std::byte>& rows = stored[static_cast<size_t>(thread)];
    rows.resize(static_cast<size_t>(panels_at_once * kPanelRows * row_bytes));
    error.Run([&]() -> absl::Status {
      SWITCHYARD_RETURN_IF_ERROR(
          ReadRows(source, (first + slab) * rows_ + row_begin, row_end - row_begin, rows.data()));
      std::byte* panel = out + slab * layout_.slab_bytes + panel_begin * panel_bytes;
      for (int64_t row = row_begin; row < row_end; row += kPanelRows, panel += panel_bytes) {
        PackPanel(layout_.dtype, rows.data() + (row - row_begin) * row_bytes,
                  std::min(kPanelRows, row_end - row), cols_, panel);
      }
      return absl::OkStatus();
    });
  });
  return error.Take();
}

absl::Status CpuWeight::LoadSlab(int64_t slab, int64_t slot, ThreadPool* pool) {
  SWITCHYARD_CHECK(slab >= 0 && slab < num_slabs_ && slot >= 0 && slot < num_slots_);
  std::byte* const out = data_ + slot * layout_.slab_bytes;
  return layout_.in_panels ? LoadPanels(source_, slab, 1, out, pool)
                           : LoadStored(source_, slab, 1, out, pool);
}

int64_t CpuWeight::StoredBytes(DType dtype, int64_t rows, int64_t cols) {
  return rows * RowBytes(dtype, cols) + kPaddingBytes;
}

absl::Status CpuWeight::ReadStored(int64_t slab, int64_t begin, int64_t end, std::byte* buffer,
                                   WeightMatrix& matrix) const {
  SWITCHYARD_DCHECK(slab >= 0 && slab < num_slabs_ && begin >= 0 && end <= rows_);
  matrix = {layout_.dtype, buffer, end - begin, cols_, false};
  absl::Status status = ReadRows(source_, slab * rows_ + begin, end - begin, buffer);
  if (!status.ok()) {
    std::memset(buffer, 0, static_cast<size_t>((end - begin) * RowBytes(layout_.dtype, cols_)));
  }
  return status;
}

absl::Status CpuWeight::LoadFloats(const WeightSource& source) {
  const int64_t num_rows = num_slabs_ * rows_;
  const int64_t file_row_bytes = source.view.row_bytes();
  const int64_t rows_at_once =
      std::clamp<int64_t>(kReadBytes / std::max<int64_t>(1, file_row_bytes), 1, num_rows);
  float* values = reinterpret_cast<float*>(data_);
  std::vector<std::byte> stored(static_cast<size_t>(rows_at_once * file_row_bytes));
  std::vector<float> decoded(static_cast<size_t>(cols_));
  for (int64_t first = 0; first < num_rows; first += rows_at_once) {
    const int64_t count = std::min(rows_at_once, num_rows - first);
    SWITCHYARD_RETURN_IF_ERROR(ReadRows(source, first, count, stored.data()));
    for (int64_t row = first; row < first + count; ++row) {
      DequantizeRow(dtype_, stored.data() + (row - first) * file_row_bytes, cols_, decoded.data());
      for (int64_t col = 0; col < cols_; ++col) {
        values[layout_.tap_major ? col * num_rows + row : row * cols_ + col] =
            decoded[static_cast<size_t>(col)];
      }
    }
  }
  return absl::OkStatus();
}

void CpuWeight::NarrowIfExact() {
  if (layout_.dtype != DType::kF32) return;
  const int64_t count = num_slabs_ * rows_ * cols_;
  const auto word = [&](int64_t i) {
    uint32_t bits;
    std::memcpy(&bits, data_ + 4 * i, sizeof(bits));
    return bits;
  };
  for (int64_t i = 0; i < count; ++i) {
    if ((word(i) & 0xffff) != 0) return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto upper = static_cast<uint16_t>(word(i) >> 16);
    std::memcpy(data_ + 2 * i, &upper, sizeof(upper));
  }
  layout_.dtype = DType::kBF16;
  layout_.slab_bytes /= 2;
  layout_.bytes /= 2;
  resident_bytes_ = layout_.bytes;
}

void CpuWeight::DecodeRow(int64_t row, float* out) const {
  SWITCHYARD_DCHECK(row >= 0 && row < rows_ && !layout_.tap_major);
  if (!layout_.in_panels) {
    DequantizeRow(layout_.dtype, data_ + row * RowBytes(layout_.dtype, cols_), cols_, out);
    return;
  }
  const int64_t panel_bytes = PanelsBytes(layout_.dtype, kPanelRows, cols_);
  DecodePanelRow(layout_.dtype, data_ + row / kPanelRows * panel_bytes, row % kPanelRows, cols_,
                 out);
}

}  // namespace switchyard::kernels::cpu
