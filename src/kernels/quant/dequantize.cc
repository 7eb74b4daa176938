#include "kernels/quant/dequantize.h"

#include <cstring>

#include "base/check.h"
#include "kernels/quant/formats.h"

namespace switchyard::kernels {
namespace {

template <typename Format>
void DequantizeBlocks(const uint8_t* row, int64_t num_blocks, float* out) {
  constexpr int kLength = Format::kBlockLength;
  int8_t values[kLength];
  float scales[kLength / 16];
  float minima[kLength / 16];
  for (int64_t b = 0; b < num_blocks; ++b) {
    Format::Expand(row + b * Format::kBlockBytes, values, scales, minima);
    for (int i = 0; i < kLength; ++i) {
      float value = scales[i / 16] * static_cast<float>(values[i]);
      if constexpr (Format::kHasMinimum) value += minima[i / 16];
      out[b * kLength + i] = value;
    }
  }
}

}  // namespace

void DequantizeRow(DType dtype, const std::byte* row, int64_t num_elements, float* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  if (num_elements == 0) return;
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, bytes, static_cast<size_t>(num_elements) * sizeof(float));
      return;
    case DType::kF16:
      for (int64_t i = 0; i < num_elements; ++i) out[i] = LoadHalf(bytes + 2 * i);
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < num_elements; ++i) out[i] = BFloat16ToFloat(LoadU16(bytes + 2 * i));
      return;
    default:
      VisitBlockFormat(dtype, [&]<typename Format>() {
        SWITCHYARD_DCHECK(num_elements % Format::kBlockLength == 0);
        DequantizeBlocks<Format>(bytes, num_elements / Format::kBlockLength, out);
      });
  }
}

bool IsBlockFormat(DType dtype) { return Traits(dtype).block_length > 1; }

bool HasMinimum(DType dtype) {
  return IsBlockFormat(dtype) &&
         VisitBlockFormat(dtype, []<typename Format>() { return Format::kHasMinimum; });
}

void ExpandRow(DType dtype, const std::byte* row, int64_t num_elements, int8_t* values,
               float* scales, float* minima) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row);
  VisitBlockFormat(dtype, [&]<typename Format>() {
    constexpr int kLength = Format::kBlockLength;
    SWITCHYARD_DCHECK(num_elements % kLength == 0);
    for (int64_t b = 0; b < num_elements / kLength; ++b) {
      Format::Expand(bytes + b * Format::kBlockBytes, values + b * kLength,
                     scales + b * (kLength / 16),
                     Format::kHasMinimum ? minima + b * (kLength / 16) : nullptr);
    }
  });
}

}  // namespace switchyard::kernels
