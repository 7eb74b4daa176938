#include "testing/tensor_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "base/check.h"

namespace switchyard::fixtures {
namespace {

// ---- encodings
// ------------------------------------------------------------------------------------- Written
// from the definitions of the formats, apart from the code under test.

// Rounds to `bits` significant bits, to even, not below the step of the smallest exponent.
double RoundSignificand(double x, int bits, int min_exponent) {
  if (x == 0) return 0;
  const int exponent = std::max(std::ilogb(x), min_exponent) - (bits - 1);
  return std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
}

uint16_t EncodeHalf(float value) {
  const double rounded = RoundSignificand(value, 11, -14);
  SWITCHYARD_CHECK(std::abs(rounded) <= 65504);
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (rounded == 0) return sign;
  const int exponent = std::max(std::ilogb(rounded), -14);
  const int significand = static_cast<int>(std::ldexp(std::abs(rounded), 10 - exponent));
  // A normal number's leading bit (1024) carries its exponent up by one.
  return static_cast<uint16_t>(sign | ((exponent + 14) * 1024 + significand));
}

float DecodeHalf(uint16_t half) {
  const int exponent = half >> 10 & 31, significand = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(significand, -24) : std::ldexp(significand + 1024, exponent - 25);
  return static_cast<float>(half & 0x8000 ? -magnitude : magnitude);
}

uint16_t EncodeBfloat(float value) {
  const float rounded = static_cast<float>(RoundSignificand(value, 8, -126));
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) >> 16);
}

void EncodeBlock(DType dtype, const float* x, std::byte* out) {
  auto store_half = [out](size_t offset, float value) {
    const uint16_t half = EncodeHalf(value);
    std::memcpy(out + offset, &half, sizeof(half));
  };
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, x, sizeof(float));
      return;
    case DType::kF16:
      store_half(0, *x);
      return;
    case DType::kBF16: {
      const uint16_t bits = EncodeBfloat(*x);
      std::memcpy(out, &bits, sizeof(bits));
      return;
    }
    case DType::kQ8_0: {  // half scale, 32 signed bytes
      float largest = 0;
      for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[i]));
      const float scale = DecodeHalf(EncodeHalf(largest / 127));
      store_half(0, scale);
      for (int i = 0; i < 32; ++i) {
        const float steps = scale == 0 ? 0 : std::clamp(std::round(x[i] / scale), -127.f, 127.f);
        out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(steps));
      }
      return;
    }
    case DType::kQ4_0: {  // half scale, 16 bytes: values i (low) and i + 16 (high), offset 8
      float largest = 0;
      for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[i]));
      const float scale = DecodeHalf(EncodeHalf(largest / 7));
      store_half(0, scale);
      auto quant = [&](int i) {
        const float steps = scale == 0 ? 0 : std::clamp(std::round(x[i] / scale), -8.f, 7.f);
        return static_cast<int>(steps) + 8;
      };
      for (int i = 0; i < 16; ++i)
        out[2 + i] = static_cast<std::byte>(quant(i) | quant(i + 16) << 4);
      return;
    }
    default:
      SWITCHYARD_CHECK(false);
  }
}

void DecodeBlock(DType dtype, const std::byte* in, float* x) {
  uint16_t bits = 0;
  switch (dtype) {
    case DType::kF32:
      std::memcpy(x, in, sizeof(float));
      return;
    case DType::kF16:
      std::memcpy(&bits, in, sizeof(bits));
      *x = DecodeHalf(bits);
      return;
    case DType::kBF16:
      std::memcpy(&bits, in, sizeof(bits));
      *x = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      return;
    case DType::kQ8_0:
      std::memcpy(&bits, in, sizeof(bits));
      for (int i = 0; i < 32; ++i) x[i] = DecodeHalf(bits) * static_cast<int8_t>(in[2 + i]);
      return;
    case DType::kQ4_0:
      std::memcpy(&bits, in, sizeof(bits));
      for (int i = 0; i < 16; ++i) {
        const int pair = static_cast<int>(in[2 + i]);
        x[i] = DecodeHalf(bits) * static_cast<float>((pair & 15) - 8);
        x[i + 16] = DecodeHalf(bits) * static_cast<float>((pair >> 4) - 8);
      }
      return;
    default:
      SWITCHYARD_CHECK(false);
  }
}

}  // namespace

// ---- random numbers ---------------------------------------------------------------------------

double Random::Normal() {
  const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
  return radius * std::cos(2 * std::numbers::pi * Uniform());
}

std::vector<float> Random::Normals(int64_t count, double deviation, double mean) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(mean + deviation * Normal());
  return values;
}

// ---- tensors ----------------------------------------------------------------------------------

TensorData Encode(std::string name, const std::vector<float>& values, int64_t num_slabs,
                  int64_t rows, int64_t cols, DType dtype) {
  SWITCHYARD_CHECK(static_cast<int64_t>(values.size()) == num_slabs * rows * cols);
  const DTypeTraits& traits = Traits(dtype);
  TensorData tensor{std::move(name), dtype, num_slabs, rows, cols, {}};
  tensor.bytes.resize(static_cast<size_t>(num_slabs * rows * RowBytes(dtype, cols)));
  std::byte* out = tensor.bytes.data();
  for (size_t i = 0; i < values.size(); i += static_cast<size_t>(traits.block_length)) {
    EncodeBlock(dtype, values.data() + i, out);
    out += traits.block_bytes;
  }
  return tensor;
}

std::vector<float> Decode(const TensorData& tensor) {
  const DTypeTraits& traits = Traits(tensor.dtype);
  std::vector<float> values(static_cast<size_t>(tensor.num_slabs * tensor.rows * tensor.cols));
  const std::byte* in = tensor.bytes.data();
  for (size_t i = 0; i < values.size(); i += static_cast<size_t>(traits.block_length)) {
    DecodeBlock(tensor.dtype, in, values.data() + i);
    in += traits.block_bytes;
  }
  return values;
}

}  // namespace switchyard::fixtures
