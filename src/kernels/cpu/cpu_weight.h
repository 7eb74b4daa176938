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
#include "base/thread_pool.h"
#include "kernels/cpu/matmul.h"
#include "kernels/quant/dequantize.h"
#include "kernels/stage_types.h"

namespace switchyard::kernels::cpu {

// How a tensor is kept.
struct WeightLayout {
  DType dtype = DType::kF32;  // in memory
  bool in_panels = false;     // panel.h; else rows one after another
  bool tap_major = false;     // convolution taps, tap by tap
  int64_t slab_bytes = 0;
  int64_t bytes = 0;  // of all slabs, without the margin that vector loads need
};

// Chooses the layout: panels for the formats that have them, else as in the file. Small tensors
// (WeightUse::kVector and kConvTaps) become floats. With `recode` the formats whose panels take
// more bytes than the file (IQ3_S, IQ3_XXS) get panels too.
WeightLayout ChooseLayout(const TensorView& view, WeightUse use, bool recode);

// Whether panels of this type take notably more bytes than the file.
bool GrowsInPanels(DType dtype);

// A tensor in memory of the cpu backend. Convolution taps [channels, taps] are stored tap by tap,
// [taps, channels], so that neighbouring channels share a vector.
class CpuWeight final : public Weight {
 public:
  static const CpuWeight& From(const Weight& weight) {
    return static_cast<const CpuWeight&>(weight);
  }

  // Reads a tensor into `arena`, or into memory of its own where that is full, with all threads of
  // `pool`. A matrix of F32 whose values are all BF16 is kept as BF16, which changes no result.
  //
  // Errors: those of `source.read`, kResourceExhausted.
  static absl::StatusOr<std::unique_ptr<CpuWeight>> Load(const WeightSource& source, WeightUse use,
                                                         bool recode, Arena* arena,
                                                         ThreadPool& pool);

  // Bytes that Load() takes out of an arena, at most.
  static int64_t ArenaBytesOf(const WeightRequest& request, bool recode);

  // Fills a slot of the fast tier, with the threads of `pool` or, without one, on the caller's.
  // REQUIRES: loaded with tiers.
  // Errors:   those of the source's `read`.
  absl::Status LoadSlab(int64_t slab, int64_t slot, ThreadPool* pool);

  // One slab, for products; with tiers, the one in slot `slab`.
  WeightMatrix matrix(int64_t slab = 0) const {
    SWITCHYARD_DCHECK(slab >= 0 && slab < num_slots_ && !layout_.tap_major);
    return {layout_.dtype, data_ + slab * layout_.slab_bytes, rows_, cols_, layout_.in_panels};
  }
  // Reads rows [begin, end) of a slab from the slow tier into `buffer`, which has room for
  // StoredBytes() of them: a matrix of these rows alone, whose products are the same bits as those
  // of the fast tier.
  // REQUIRES: loaded with tiers.
  // Errors:   those of the source's `read`; the matrix is then of zeros.
  absl::Status ReadStored(int64_t slab, int64_t begin, int64_t end, std::byte* buffer,
                          WeightMatrix& matrix) const;
  static int64_t StoredBytes(DType dtype, int64_t rows, int64_t cols);
  // Bytes of a slab in the file.
  int64_t stored_slab_bytes() const { return rows_ * RowBytes(dtype_, cols_); }
  // Decodes row `row` of a one-slab tensor. Shapes: out [cols].
  void DecodeRow(int64_t row, float* out) const;

  // Whether products read their activations as groups of 32 bytes; else as floats.
  bool takes_quantized() const { return IsBlockFormat(layout_.dtype); }
  int64_t slab_bytes() const { return layout_.slab_bytes; }

  // REQUIRES: loaded as kVector.
  const float* values() const {
    SWITCHYARD_DCHECK(layout_.dtype == DType::kF32 && !layout_.tap_major);
    return reinterpret_cast<const float*>(data_);
  }
  // Taps [cols, rows] of a convolution. REQUIRES: loaded as kConvTaps.
  const float* taps() const {
    SWITCHYARD_DCHECK(layout_.tap_major);
    return reinterpret_cast<const float*>(data_);
  }

 private:
  CpuWeight(const TensorView& view, const WeightLayout& layout);

  // Slabs [first, first + count) to `out`, a slab after the other. Without a pool on the caller's
  // thread.
  absl::Status LoadStored(const WeightSource& source, int64_t first, int64_t count, std::byte* out,
                          ThreadPool* pool) const;
  absl::Status LoadPanels(const WeightSource& source, int64_t first, int64_t count, std::byte* out,
                          ThreadPool* pool) const;
  absl::Status LoadFloats(const WeightSource& source);
  void NarrowIfExact();

  WeightLayout layout_;
  std::byte* data_ = nullptr;
  std::optional<Arena> own_;
  WeightSource source_;  // with tiers: where the slow one is read from
};

}  // namespace switchyard::kernels::cpu
