#include "kernels/cpu/cpu_weight.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::kernels::cpu {
namespace {

// Vector loads of the last elements of a tensor may read this far beyond it.
constexpr int64_t kPaddingBytes = 64;

// Rows are read in pieces of about this size.
constexpr int64_t kReadBytes = 4 << 20;

bool IsDecoded(WeightUse use) { return use == WeightUse::kVector || use == WeightUse::kConvTaps; }

DType MemoryDType(const TensorView& view, WeightUse use) {
  return IsDecoded(use) ? DType::kF32 : view.dtype;
}

absl::Status ReadRows(const WeightSource& source, int64_t first, int64_t count, std::byte* out) {
  if (source.read) return source.read(first, count, out);
  const int64_t row_bytes = source.view.row_bytes();
  std::memcpy(out, source.view.data + first * row_bytes, static_cast<size_t>(count * row_bytes));
  return absl::OkStatus();
}

}  // namespace

CpuWeight::CpuWeight(const TensorView& view, WeightUse use)
    : Weight(view.dtype, view.num_slabs, view.rows, view.cols),
      memory_dtype_(MemoryDType(view, use)),
      tap_major_(use == WeightUse::kConvTaps),
      row_bytes_(RowBytes(memory_dtype_, view.cols)) {
  resident_bytes_ = view.num_slabs * view.rows * row_bytes_;
}

int64_t CpuWeight::ArenaBytesOf(const TensorView& view, WeightUse use) {
  return ArenaBytes(view.num_slabs * view.rows * RowBytes(MemoryDType(view, use), view.cols) +
                    kPaddingBytes);
}

absl::StatusOr<std::unique_ptr<CpuWeight>> CpuWeight::Load(const WeightSource& source,
                                                           WeightUse use, Arena* arena) {
  const TensorView& view = source.view;
  auto weight = std::unique_ptr<CpuWeight>(new CpuWeight(view, use));
  const int64_t bytes = ArenaBytesOf(view, use);
  if (arena != nullptr && arena->capacity_bytes() - arena->used_bytes() >= bytes) {
    weight->data_ = arena->Allocate(bytes);
  } else {
    SWITCHYARD_ASSIGN_OR_RETURN(Arena own, Arena::Create(bytes, {}));
    weight->own_ = std::move(own);
    weight->data_ = weight->own_->Allocate(bytes);
  }

  const int64_t num_rows = view.num_slabs * view.rows;
  const int64_t file_row_bytes = view.row_bytes();
  const int64_t rows_at_once =
      std::max<int64_t>(1, kReadBytes / std::max<int64_t>(1, file_row_bytes));
  if (!IsDecoded(use)) {
    for (int64_t row = 0; row < num_rows; row += rows_at_once) {
      const int64_t count = std::min(rows_at_once, num_rows - row);
      SWITCHYARD_RETURN_IF_ERROR(
          ReadRows(source, row, count, weight->data_ + row * file_row_bytes));
    }
    return weight;
  }

  float* values = reinterpret_cast<float*>(weight->data_);
  std::vector<std::byte> stored(
      static_cast<size_t>(std::min(rows_at_once, num_rows) * file_row_bytes));
  std::vector<float> decoded(static_cast<size_t>(view.cols));
  for (int64_t first = 0; first < num_rows; first += rows_at_once) {
    const int64_t count = std::min(rows_at_once, num_rows - first);
    SWITCHYARD_RETURN_IF_ERROR(ReadRows(source, first, count, stored.data()));
    for (int64_t row = first; row < first + count; ++row) {
      DequantizeRow(view.dtype, stored.data() + (row - first) * file_row_bytes, view.cols,
                    decoded.data());
      for (int64_t col = 0; col < view.cols; ++col) {
        values[weight->tap_major_ ? col * num_rows + row : row * view.cols + col] =
            decoded[static_cast<size_t>(col)];
      }
    }
  }
  return weight;
}

}  // namespace switchyard::kernels::cpu
