// Which rows and columns of a stored tensor make up one weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "placement/rank_share.h"

namespace switchyard::worker {

// All of a tensor, or the part of it that a rank holds: files may also interleave the rows of
// several matrices. Rows are counted over all slabs of the tensor; the weight's rows are those of
// the first range, then those of the second, and so on.
class TensorSlice {
 public:
  using Range = placement::Range;

  // Everything. Null = the model has no such tensor. Implicit: a tensor is what most weights are.
  TensorSlice(model::TensorRef tensor);  // NOLINT(google-explicit-constructor)

  // These rows, which make up `num_slabs` slabs. REQUIRES: there is a tensor, the ranges lie in it.
  static TensorSlice Rows(model::TensorRef tensor, const std::vector<Range>& rows,
                          int64_t num_slabs = 1);
  // The same rows of each slab of the tensor, or of the slabs listed, in that order.
  static TensorSlice SlabRows(model::TensorRef tensor, const std::vector<Range>& rows);
  static TensorSlice SlabRows(model::TensorRef tensor, const std::vector<Range>& rows,
                              const std::vector<int32_t>& slabs);

  // Of each of its rows these columns only, in that order.
  // REQUIRES: they are whole blocks of the tensor's type.
  TensorSlice Columns(const std::vector<Range>& columns) const;

  model::TensorRef tensor() const { return tensor_; }
  bool is_whole() const { return rows_.empty() && columns_.empty(); }
  int64_t num_slabs() const { return num_slabs_; }
  int64_t num_rows() const { return total_rows_ / num_slabs_; }  // of one slab
  int64_t num_columns() const { return num_columns_; }
  int64_t bytes() const;

  // Type and shape of the weight; no data.
  TensorView View() const;

  // Reads `count` rows, from the weight's row `first` on.
  //
  // Threads: any.
  // Errors: kDataLoss and others of GgufFile::Read().
  absl::Status Read(const model::GgufFile& file, int64_t first, int64_t count,
                    std::byte* out) const;

 private:
  model::TensorRef tensor_;
  std::vector<Range> rows_;         // empty: all
  std::vector<int64_t> first_row_;  // of the weight, for each of rows_
  std::vector<Range> columns_;      // empty: all
  int64_t num_slabs_ = 1;
  int64_t total_rows_ = 0;  // of all slabs
  int64_t num_columns_ = 0;
};

}  // namespace switchyard::worker
