#include "comm/tree_reduction.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace switchyard::comm {
namespace {

// Elements that are taken through the whole tree at a time: 64 ranks of them are 64 KiB of stack.
constexpr int64_t kBlock = 256;

struct Add {
  float operator()(float a, float b) const { return a + b; }
  uint32_t operator()(uint32_t a, uint32_t b) const { return a + b; }
};

struct Max {
  float operator()(float a, float b) const { return (a > b || a != a) ? a : b; }
  int32_t operator()(int32_t a, int32_t b) const { return std::max(a, b); }
};

template <typename T>
T Load(const std::byte* part, int64_t i) {
  T value;
  std::memcpy(&value, part + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void Store(std::byte* out, int64_t i, T value) {
  std::memcpy(out + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// How elements of each type come into the type W in which they are reduced, and back.
struct F32Elements {
  using W = float;
  static W Get(const std::byte* part, int64_t i) { return Load<float>(part, i); }
  static void Put(std::byte* out, int64_t i, W value) { Store(out, i, value); }
};
struct F16Elements {
  using W = float;
  static W Get(const std::byte* part, int64_t i) { return FloatFromHalf(Load<uint16_t>(part, i)); }
  static void Put(std::byte* out, int64_t i, W value) { Store(out, i, HalfFromFloat(value)); }
};
struct BF16Elements {
  using W = float;
  static W Get(const std::byte* part, int64_t i) {
    return FloatFromBFloat16(Load<uint16_t>(part, i));
  }
  static void Put(std::byte* out, int64_t i, W value) { Store(out, i, BFloat16FromFloat(value)); }
};
struct WrappingI32Elements {
  using W = uint32_t;
  static W Get(const std::byte* part, int64_t i) { return Load<uint32_t>(part, i); }
  static void Put(std::byte* out, int64_t i, W value) { Store(out, i, value); }
};
struct I32Elements {
  using W = int32_t;
  static W Get(const std::byte* part, int64_t i) { return Load<int32_t>(part, i); }
  static void Put(std::byte* out, int64_t i, W value) { Store(out, i, value); }
};
struct WrappingU8Elements {
  using W = uint32_t;
  static W Get(const std::byte* part, int64_t i) { return Load<uint8_t>(part, i); }
  static void Put(std::byte* out, int64_t i, W value) {
    Store(out, i, static_cast<uint8_t>(value));
  }
};
struct U8Elements {
  using W = int32_t;
  static W Get(const std::byte* part, int64_t i) { return Load<uint8_t>(part, i); }
  static void Put(std::byte* out, int64_t i, W value) {
    Store(out, i, static_cast<uint8_t>(value));
  }
};

// One pass for two, three and four ranks: no values in between leave the registers.
template <typename E, typename Op, size_t kRanks>
void ReduceFew(absl::Span<const std::byte* const> parts, std::byte* out, int64_t count) {
  const Op op;
  const std::byte* a = parts[0];
  const std::byte* b = parts[1];
  const std::byte* c = kRanks > 2 ? parts[2] : nullptr;
  const std::byte* d = kRanks > 3 ? parts[3] : nullptr;
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const auto low = op(E::Get(a, i), E::Get(b, i));
    if constexpr (kRanks == 2) {
      E::Put(out, i, low);
    } else if constexpr (kRanks == 3) {
      E::Put(out, i, op(low, E::Get(c, i)));
    } else {
      E::Put(out, i, op(low, op(E::Get(c, i), E::Get(d, i))));
    }
  }
}

template <typename E, typename Op>
void ReduceMany(absl::Span<const std::byte* const> parts, std::byte* out, int64_t count) {
  using W = typename E::W;
  const Op op;
  W level[kMaxRanks][kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    for (size_t r = 0; r < parts.size(); ++r) {
      for (int64_t i = 0; i < length; ++i) level[r][i] = E::Get(parts[r], begin + i);
    }
    for (size_t num = parts.size(); num > 1; num = (num + 1) / 2) {
      for (size_t pair = 0; pair < num / 2; ++pair) {
        for (int64_t i = 0; i < length; ++i) {
          level[pair][i] = op(level[2 * pair][i], level[2 * pair + 1][i]);
        }
      }
      if (num % 2 == 1) std::copy_n(level[num - 1], length, level[num / 2]);
    }
    for (int64_t i = 0; i < length; ++i) E::Put(out, begin + i, level[0][i]);
  }
}

template <typename E, typename Op>
void Reduce(absl::Span<const std::byte* const> parts, std::byte* out, int64_t count) {
  switch (parts.size()) {
    case 2:
      return ReduceFew<E, Op, 2>(parts, out, count);
    case 3:
      return ReduceFew<E, Op, 3>(parts, out, count);
    case 4:
      return ReduceFew<E, Op, 4>(parts, out, count);
    default:
      return ReduceMany<E, Op>(parts, out, count);
  }
}

}  // namespace

float FloatFromHalf(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) {
    // Zero or subnormal: mantissa units of 2^-24.
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t HalfFromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  // From 65520 on (half a unit above the largest, 65504) everything is infinity.
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 puts units of 2^-24 into the last bit of a float, rounded to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t odd = magnitude >> 13 & 1;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

float FloatFromBFloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t BFloat16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

void TreeReduce(absl::Span<const std::byte* const> parts, std::byte* out, int64_t count,
                DataType type, RedOp op) {
  SWITCHYARD_CHECK(!parts.empty() && parts.size() <= static_cast<size_t>(kMaxRanks));
  if (count == 0) return;
  if (parts.size() == 1) {
    std::memcpy(out, parts[0], static_cast<size_t>(count * BytesOf(type)));
    return;
  }
  const bool sum = op == RedOp::kSum;
  switch (type) {
    case DataType::kF32:
      return sum ? Reduce<F32Elements, Add>(parts, out, count)
                 : Reduce<F32Elements, Max>(parts, out, count);
    case DataType::kF16:
      return sum ? Reduce<F16Elements, Add>(parts, out, count)
                 : Reduce<F16Elements, Max>(parts, out, count);
    case DataType::kBF16:
      return sum ? Reduce<BF16Elements, Add>(parts, out, count)
                 : Reduce<BF16Elements, Max>(parts, out, count);
    case DataType::kI32:
      return sum ? Reduce<WrappingI32Elements, Add>(parts, out, count)
                 : Reduce<I32Elements, Max>(parts, out, count);
    case DataType::kU8:
      return sum ? Reduce<WrappingU8Elements, Add>(parts, out, count)
                 : Reduce<U8Elements, Max>(parts, out, count);
  }
}

}  // namespace switchyard::comm
