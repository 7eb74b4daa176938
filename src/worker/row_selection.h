// Which rows of a stored tensor make up one weight.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "model/model_spec.h"

namespace switchyard::worker {

// All rows of a tensor, or a choice: files may interleave the rows of several matrices in groups,
// such as those of one head. Each part is the same rows of every group, groups in order; the
// weight's rows are those of the first part, then those of the second, and so on.
class RowSelection {
 public:
  struct Part {
    int64_t first = 0;  // in the group
    int64_t count = 0;
  };

  // All rows. Null = the model has no such tensor. Implicit: a tensor is what most weights are.
  RowSelection(model::TensorRef tensor) : tensor_(tensor) {}  // NOLINT(google-explicit-constructor)
  // REQUIRES: the tensor's rows are whole groups, and each part lies within one.
  RowSelection(model::TensorRef tensor, int64_t group_rows, std::initializer_list<Part> parts);

  model::TensorRef tensor() const { return tensor_; }
  // Rows of one slab.
  int64_t num_rows() const;
  // Of the selected rows of all slabs.
  int64_t bytes() const;

  // Calls visit(row of the file, number of rows) for the stretches that the selection's rows
  // [first, first + count) consist of, in order, until one fails. Without parts, rows are those of
  // all slabs.
  absl::Status ForEachStretch(
      int64_t first, int64_t count,
      absl::FunctionRef<absl::Status(int64_t file_row, int64_t count)> visit) const;

 private:
  model::TensorRef tensor_;
  int64_t group_rows_ = 0;
  int64_t num_groups_ = 0;
  std::vector<Part> parts_;  // empty: all rows
};

}  // namespace switchyard::worker
