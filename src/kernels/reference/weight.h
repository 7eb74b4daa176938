// A weight of the reference backend: decoded values, or the bytes of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "base/check.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::reference {

class ReferenceWeight final : public Weight {
 public:
  // Reads a tensor and keeps it as F32 (`decode`) or as it is stored; either way its values are
  // exactly those of the file.
  //
  // Errors: kInvalidArgument (shape that the format does not allow), what the source returns.
  static absl::StatusOr<std::unique_ptr<ReferenceWeight>> Read(const WeightSource& source,
                                                               bool decode);

  // Values of row `row` of the flattened [num_slabs * rows] rows; `scratch` [cols] holds them if
  // they have to be decoded first.
  const float* Row(int64_t row, float* scratch) const;

  // All values. REQUIRES: the weight was decoded, as every vector is.
  const float* values() const {
    SWITCHYARD_CHECK(!values_.empty());
    return values_.data();
  }

  int64_t row_resident_bytes() const { return resident_bytes_ / (num_slabs_ * rows_); }

 private:
  explicit ReferenceWeight(const TensorView& view)
      : Weight(view.dtype, view.num_slabs, view.rows, view.cols) {}

  std::vector<float> values_;
  std::vector<std::byte> bytes_;  // empty when decoded
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
