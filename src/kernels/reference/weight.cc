#include "kernels/reference/weight.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "base/status_macros.h"
#include "kernels/quant/dequantize.h"

namespace switchyard::kernels::reference {
namespace {

constexpr int64_t kReadBytes = 1 << 20;  // of a file that are decoded at a time

absl::Status ReadRows(const WeightSource& source, int64_t first, int64_t count, std::byte* out) {
  if (source.read) return source.read(first, count, out);
  const int64_t row_bytes = source.view.row_bytes();
  std::memcpy(out, source.view.data + first * row_bytes, static_cast<size_t>(count * row_bytes));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReferenceWeight>> ReferenceWeight::Read(const WeightSource& source,
                                                                       bool decode,
                                                                       StageFault* fault) {
  const TensorView& view = source.view;
  const int block_length = Traits(view.dtype).block_length;
  if (view.num_slabs <= 0 || view.rows <= 0 || view.cols <= 0 || view.cols % block_length != 0) {
    return InvalidArgument("tensor has an impossible shape: {}, [{}, {}, {}], block: {}",
                           source.name, view.num_slabs, view.rows, view.cols, block_length);
  }
  std::unique_ptr<ReferenceWeight> weight(new ReferenceWeight(view));
  const int64_t num_rows = view.num_slabs * view.rows, row_bytes = view.row_bytes();
  if (source.num_slots.has_value()) {
    SWITCHYARD_CHECK(fault != nullptr);
    weight->num_slots_ = *source.num_slots;
    weight->source_ = source;
    weight->fault_ = fault;
    weight->resident_bytes_ = weight->num_slots_ * view.rows * row_bytes;
    weight->bytes_.resize(static_cast<size_t>(weight->resident_bytes_));
    weight->stored_row_.resize(static_cast<size_t>(row_bytes));
    return weight;
  }
  if (!decode) {
    weight->bytes_.resize(static_cast<size_t>(view.bytes()));
    SWITCHYARD_RETURN_IF_ERROR(ReadRows(source, 0, num_rows, weight->bytes_.data()));
    weight->resident_bytes_ = view.bytes();
    return weight;
  }
  weight->values_.resize(static_cast<size_t>(num_rows * view.cols));
  weight->resident_bytes_ = num_rows * view.cols * static_cast<int64_t>(sizeof(float));
  const int64_t rows_at_once = std::clamp<int64_t>(kReadBytes / row_bytes, 1, num_rows);
  std::vector<std::byte> bytes(static_cast<size_t>(rows_at_once * row_bytes));
  for (int64_t first = 0; first < num_rows; first += rows_at_once) {
    const int64_t count = std::min(rows_at_once, num_rows - first);
    SWITCHYARD_RETURN_IF_ERROR(ReadRows(source, first, count, bytes.data()));
    for (int64_t r = 0; r < count; ++r) {
      DequantizeRow(view.dtype, bytes.data() + r * row_bytes, view.cols,
                    weight->values_.data() + (first + r) * view.cols);
    }
  }
  return weight;
}

const float* ReferenceWeight::Row(int64_t row, float* scratch) const {
  SWITCHYARD_DCHECK(row >= 0 && row < num_slots_ * rows_);
  if (!values_.empty()) return values_.data() + row * cols_;
  DequantizeRow(dtype_, bytes_.data() + row * RowBytes(dtype_, cols_), cols_, scratch);
  return scratch;
}

const float* ReferenceWeight::StoredRow(int64_t row, float* scratch) const {
  SWITCHYARD_DCHECK(row >= 0 && row < num_slabs_ * rows_ && fault_ != nullptr);
  const absl::Status status = ReadRows(source_, row, 1, stored_row_.data());
  fault_->Report(status);
  if (status.ok()) {
    DequantizeRow(dtype_, stored_row_.data(), cols_, scratch);
  } else {
    std::fill_n(scratch, cols_, 0.0f);
  }
  return scratch;
}

absl::Status ReferenceWeight::LoadSlab(int64_t slab, int64_t slot) {
  SWITCHYARD_CHECK(slab >= 0 && slab < num_slabs_ && slot >= 0 && slot < num_slots_);
  return ReadRows(source_, slab * rows_, rows_,
                  bytes_.data() + slot * rows_ * RowBytes(dtype_, cols_));
}

}  // namespace switchyard::kernels::reference
