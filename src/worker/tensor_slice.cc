#include "worker/tensor_slice.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/status_macros.h"

namespace switchyard::worker {
namespace {

// Rows that are read as a whole before their columns are copied out.
constexpr int64_t kBufferBytes = int64_t{256} << 10;

}  // namespace

TensorSlice::TensorSlice(model::TensorRef tensor) : tensor_(tensor) {
  if (tensor == nullptr) return;
  num_slabs_ = tensor->dims[2] * tensor->dims[3];
  total_rows_ = tensor->num_rows();
  num_columns_ = tensor->row_elements();
}

TensorSlice TensorSlice::Rows(model::TensorRef tensor, const std::vector<Range>& rows,
                              int64_t num_slabs) {
  SWITCHYARD_CHECK(tensor != nullptr && num_slabs > 0);
  TensorSlice slice(tensor);
  slice.num_slabs_ = num_slabs;
  slice.total_rows_ = 0;
  for (const Range& range : rows) {
    SWITCHYARD_CHECK(range.begin >= 0 && range.begin <= range.end &&
                     range.end <= tensor->num_rows());
    if (range.empty()) continue;
    const bool adjoins = !slice.rows_.empty() && slice.rows_.back().end == range.begin;
    if (adjoins) {
      slice.rows_.back().end = range.end;
    } else {
      slice.rows_.push_back(range);
      slice.first_row_.push_back(slice.total_rows_);
    }
    slice.total_rows_ += range.size();
  }
  SWITCHYARD_CHECK(slice.total_rows_ > 0 && slice.total_rows_ % num_slabs == 0);
  return slice;
}

TensorSlice TensorSlice::SlabRows(model::TensorRef tensor, const std::vector<Range>& rows) {
  std::vector<int32_t> slabs(static_cast<size_t>(tensor->dims[2] * tensor->dims[3]));
  std::iota(slabs.begin(), slabs.end(), 0);
  return SlabRows(tensor, rows, slabs);
}

TensorSlice TensorSlice::SlabRows(model::TensorRef tensor, const std::vector<Range>& rows,
                                  const std::vector<int32_t>& slabs) {
  std::vector<Range> all;
  all.reserve(slabs.size() * rows.size());
  for (const int32_t slab : slabs) {
    for (const Range& range : rows) {
      const int64_t base = slab * tensor->dims[1];
      all.push_back({base + range.begin, base + range.end});
    }
  }
  return Rows(tensor, all, static_cast<int64_t>(slabs.size()));
}

TensorSlice TensorSlice::Columns(const std::vector<Range>& columns) const {
  const int64_t block = Traits(tensor_->dtype).block_length;
  TensorSlice slice = *this;
  slice.columns_.clear();
  slice.num_columns_ = 0;
  for (const Range& range : columns) {
    SWITCHYARD_CHECK(range.begin >= 0 && range.begin <= range.end &&
                     range.end <= tensor_->row_elements() && range.begin % block == 0 &&
                     range.end % block == 0);
    if (range.empty()) continue;
    const bool adjoins = !slice.columns_.empty() && slice.columns_.back().end == range.begin;
    if (adjoins) {
      slice.columns_.back().end = range.end;
    } else {
      slice.columns_.push_back(range);
    }
    slice.num_columns_ += range.size();
  }
  SWITCHYARD_CHECK(slice.num_columns_ > 0);
  if (slice.num_columns_ == tensor_->row_elements() && slice.columns_.size() == 1) {
    slice.columns_.clear();
  }
  return slice;
}

int64_t TensorSlice::bytes() const { return total_rows_ * RowBytes(tensor_->dtype, num_columns_); }

TensorView TensorSlice::View() const {
  TensorView view;
  view.dtype = tensor_->dtype;
  view.num_slabs = num_slabs_;
  view.rows = num_rows();
  view.cols = num_columns_;
  return view;
}

absl::Status TensorSlice::Read(const model::GgufFile& file, int64_t first, int64_t count,
                               std::byte* out) const {
  SWITCHYARD_DCHECK(first >= 0 && first + count <= total_rows_);
  const int64_t stored_bytes = tensor_->row_bytes();
  const int64_t row_bytes = RowBytes(tensor_->dtype, num_columns_);
  std::vector<std::byte> buffer;
  size_t i = 0;
  if (!rows_.empty()) {
    const auto after = std::upper_bound(first_row_.begin(), first_row_.end(), first);
    i = static_cast<size_t>(after - first_row_.begin()) - 1;
  }
  while (count > 0) {
    int64_t file_row = first, stretch = count;
    if (!rows_.empty()) {
      file_row = rows_[i].begin + (first - first_row_[i]);
      stretch = std::min(count, rows_[i].end - file_row);
      if (file_row + stretch == rows_[i].end) ++i;
    }
    first += stretch;
    count -= stretch;
    if (columns_.empty()) {
      SWITCHYARD_RETURN_IF_ERROR(
          file.Read(*tensor_, file_row, stretch,
                    absl::MakeSpan(out, static_cast<size_t>(stretch * stored_bytes))));
      out += stretch * stored_bytes;
      continue;
    }
    const int64_t at_once = std::max<int64_t>(1, kBufferBytes / stored_bytes);
    for (int64_t done = 0; done < stretch; done += at_once) {
      const int64_t num_rows = std::min(at_once, stretch - done);
      buffer.resize(static_cast<size_t>(num_rows * stored_bytes));
      SWITCHYARD_RETURN_IF_ERROR(
          file.Read(*tensor_, file_row + done, num_rows, absl::MakeSpan(buffer)));
      for (int64_t r = 0; r < num_rows; ++r) {
        std::byte* to = out + r * row_bytes;
        for (const Range& range : columns_) {
          const int64_t begin = RowBytes(tensor_->dtype, range.begin);
          const int64_t bytes = RowBytes(tensor_->dtype, range.size());
          std::memcpy(to, buffer.data() + r * stored_bytes + begin, static_cast<size_t>(bytes));
          to += bytes;
        }
      }
      out += num_rows * row_bytes;
    }
  }
  return absl::OkStatus();
}

}  // namespace switchyard::worker
