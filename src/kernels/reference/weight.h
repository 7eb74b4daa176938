// A weight of the reference backend: decoded values, or the bytes of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "base/check.h"
#include "kernels/stage_fault.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::reference {

class ReferenceWeight final : public Weight {
 public:
  // Reads a tensor and keeps it as F32 (`decode`) or as it is stored; either way its values are
  // exactly those of the file.
  //
  // Errors: kInvalidArgument (shape that the format does not allow), what the source returns.
  // A tensor with tiers is kept as it is stored, and `fault` takes what the slow one cannot read.
  static absl::StatusOr<std::unique_ptr<ReferenceWeight>> Read(const WeightSource& source,
                                                               bool decode,
                                                               StageFault* fault = nullptr);

  // Values of row `row` of the flattened [num_slabs * rows] rows; `scratch` [cols] holds them if
  // they have to be decoded first. With tiers, of the flattened [num_slots * rows] rows.
  const float* Row(int64_t row, float* scratch) const;

  // Values of a row of the slow tier, of the flattened [num_slabs * rows] rows, in `scratch`. What
  // cannot be read is a fault, and counts as zeros.
  // Threads:  one at a time.
  // REQUIRES: has tiers.
  const float* StoredRow(int64_t row, float* scratch) const;

  // Fills a slot of the fast tier. REQUIRES: has tiers.
  // Errors:   those of the source.
  absl::Status LoadSlab(int64_t slab, int64_t slot);

  // All values. REQUIRES: the weight was decoded, as every vector is.
  const float* values() const {
    SWITCHYARD_CHECK(!values_.empty());
    return values_.data();
  }

  int64_t row_resident_bytes() const { return resident_bytes_ / (num_slots_ * rows_); }

 private:
  explicit ReferenceWeight(const TensorView& view)
      : Weight(view.dtype, view.num_slabs, view.rows, view.cols) {}

  std::vector<float> values_;
  std::vector<std::byte> bytes_;  // empty when decoded
  // With tiers.
  WeightSource source_;
  StageFault* fault_ = nullptr;
  mutable std::vector<std::byte> stored_row_;
};

// A backend is only handed weights that it loaded itself.
inline const ReferenceWeight& Own(const Weight& weight) {
  return static_cast<const ReferenceWeight&>(weight);
}
// Values of a vector; null if the model has none.
inline const float* Values(const Weight* weight) {
  return weight == nullptr ? nullptr : Own(*weight).values();
}

}  // namespace switchyard::kernels::reference
