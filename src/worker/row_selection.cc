#include "worker/row_selection.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"

namespace switchyard::worker {

RowSelection::RowSelection(model::TensorRef tensor, int64_t group_rows,
                           std::initializer_list<Part> parts)
    : tensor_(tensor),
      group_rows_(group_rows),
      num_groups_(tensor->dims[1] / group_rows),
      parts_(parts) {
  SWITCHYARD_CHECK(tensor->dims[1] % group_rows == 0 && tensor->dims[2] == 1);
  for (const Part& part : parts_) {
    SWITCHYARD_CHECK(part.first >= 0 && part.count > 0 && part.first + part.count <= group_rows);
  }
}

int64_t RowSelection::num_rows() const {
  if (parts_.empty()) return tensor_->dims[1];
  int64_t rows = 0;
  for (const Part& part : parts_) rows += num_groups_ * part.count;
  return rows;
}

int64_t RowSelection::bytes() const {
  return parts_.empty() ? tensor_->bytes() : num_rows() * tensor_->row_bytes();
}

absl::Status RowSelection::ForEachStretch(
    int64_t first, int64_t count,
    absl::FunctionRef<absl::Status(int64_t file_row, int64_t count)> visit) const {
  if (parts_.empty()) return visit(first, count);
  for (const Part& part : parts_) {
    const int64_t part_rows = num_groups_ * part.count;
    while (count > 0 && first < part_rows) {
      const int64_t row = first % part.count;
      const int64_t stretch = std::min(count, part.count - row);
      SWITCHYARD_RETURN_IF_ERROR(
          visit(first / part.count * group_rows_ + part.first + row, stretch));
      first += stretch;
      count -= stretch;
    }
    first -= std::min(first, part_rows);
  }
  SWITCHYARD_DCHECK(count == 0);
  return absl::OkStatus();
}

}  // namespace switchyard::worker
