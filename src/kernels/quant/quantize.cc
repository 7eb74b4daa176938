#include "kernels/quant/quantize.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/quant/half.h"
#include "kernels/quant/q8_0.h"

namespace switchyard::kernels {
namespace {

void StoreU16(std::byte* out, uint16_t value) { std::memcpy(out, &value, sizeof(value)); }

void QuantizeQ8_0Block(const float* x, std::byte* out) {
  float largest = 0;
  for (int i = 0; i < Q8_0::kBlockLength; ++i) {
    const float magnitude = std::fabs(x[i]);
    if (magnitude > largest) largest = magnitude;
  }
  const float d = largest / 127.0f;
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  StoreU16(out, FloatToHalf(d));
  for (int i = 0; i < Q8_0::kBlockLength; ++i) {
    // 1/d is infinite if d is subnormal; the clamp keeps the conversion defined then, and for NaN.
    const float q = std::round(x[i] * inverse);
    const int bounded = q >= 127.0f ? 127 : q > -127.0f ? static_cast<int>(q) : -127;
    out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(bounded));
  }
}

}  // namespace

void QuantizeRow(DType dtype, const float* row, int64_t num_elements, std::byte* out) {
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, row, static_cast<size_t>(num_elements) * sizeof(float));
      return;
    case DType::kF16:
      for (int64_t i = 0; i < num_elements; ++i) StoreU16(out + 2 * i, FloatToHalf(row[i]));
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < num_elements; ++i) StoreU16(out + 2 * i, FloatToBFloat16(row[i]));
      return;
    case DType::kQ8_0:
      SWITCHYARD_DCHECK(num_elements % Q8_0::kBlockLength == 0);
      for (int64_t b = 0; b < num_elements / Q8_0::kBlockLength; ++b) {
        QuantizeQ8_0Block(row + b * Q8_0::kBlockLength, out + b * Q8_0::kBlockBytes);
      }
      return;
    default:
      SWITCHYARD_CHECK(false);  // no quantiser for this type: callers check with their own list
  }
}

}  // namespace switchyard::kernels
