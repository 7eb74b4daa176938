// Weights as the cpu backend keeps them: once, in memory of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/arena.h"
#include "base/check.h"
#include "base/tensor_view.h"
#include "kernels/cpu/matmul.h"
#include "kernels/quant/dequantize.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu {

// A tensor in the layout of its file, each row as stored. Small tensors (WeightUse::kVector and
// kConvTaps) are floats; convolution taps [channels, taps] are stored tap by tap,
// [taps, channels], so that neighbouring channels share a vector.
class CpuWeight final : public Weight {
 public:
  static const CpuWeight& From(const Weight& weight) {
    return static_cast<const CpuWeight&>(weight);
  }

  // Reads a tensor into `arena`, or into memory of its own where that is full.
  //
  // Errors: those of `source.read`, kResourceExhausted, kUnimplemented.
  static absl::StatusOr<std::unique_ptr<CpuWeight>> Load(const WeightSource& source, WeightUse use,
                                                         Arena* arena);

  // Bytes that Load() takes out of an arena.
  static int64_t ArenaBytesOf(const TensorView& view, WeightUse use);

  // One slab, for products and lookups.
  WeightMatrix matrix(int64_t slab = 0) const {
    SWITCHYARD_DCHECK(slab >= 0 && slab < num_slabs_ && !tap_major_);
    return {memory_dtype_, data_ + slab * slab_bytes(), rows_, cols_};
  }
  // Whether products read their activations as groups of 32 bytes; else as floats.
  bool takes_quantized() const { return IsBlockFormat(memory_dtype_); }
  DType memory_dtype() const { return memory_dtype_; }
  int64_t row_bytes() const { return row_bytes_; }
  int64_t slab_bytes() const { return rows_ * row_bytes_; }

  // REQUIRES: loaded as kVector.
  const float* values() const {
    SWITCHYARD_DCHECK(memory_dtype_ == DType::kF32 && !tap_major_);
    return reinterpret_cast<const float*>(data_);
  }
  // Taps [cols, rows] of a convolution. REQUIRES: loaded as kConvTaps.
  const float* taps() const {
    SWITCHYARD_DCHECK(tap_major_);
    return reinterpret_cast<const float*>(data_);
  }

 private:
  CpuWeight(const TensorView& view, WeightUse use);

  DType memory_dtype_;
  bool tap_major_;
  int64_t row_bytes_;
  std::byte* data_ = nullptr;
  std::optional<Arena> own_;
};

}  // namespace switchyard::kernels::cpu
