#include "app/inspect/block_check.h"

#include "base/check.h"
#include "kernels/quant/block.h"

namespace switchyard::app {
namespace {

using kernels::LoadU16;
using kernels::LoadU32;

bool IsFiniteHalf(uint16_t half) { return (half & 0x7c00u) != 0x7c00u; }

// Where a block format keeps its halves.
struct Halves {
  int first = 0;
  int second = -1;  // -1 = none
};

Halves HalvesOf(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108};
    case DType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

template <typename IsFinite>
std::optional<int64_t> FirstNot(absl::Span<const std::byte> bytes, size_t block_bytes,
                                IsFinite is_finite) {
  SWITCHYARD_CHECK(bytes.size() % block_bytes == 0);
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  for (size_t i = 0; i < bytes.size(); i += block_bytes) {
    if (!is_finite(data + i)) return static_cast<int64_t>(i / block_bytes);
  }
  return std::nullopt;
}

}  // namespace

std::optional<int64_t> FindNonFiniteBlock(DType dtype, absl::Span<const std::byte> bytes) {
  const auto block_bytes = static_cast<size_t>(Traits(dtype).block_bytes);
  switch (dtype) {
    case DType::kF32:
      return FirstNot(bytes, block_bytes, [](const uint8_t* value) {
        return (LoadU32(value) & 0x7f800000u) != 0x7f800000u;
      });
    case DType::kBF16:
      return FirstNot(bytes, block_bytes,
                      [](const uint8_t* value) { return (LoadU16(value) & 0x7f80u) != 0x7f80u; });
    case DType::kIQ1_M:
      // The half's exponent is in the top nibbles of the last two of its four words.
      return FirstNot(bytes, block_bytes, [](const uint8_t* block) {
        return IsFiniteHalf(static_cast<uint16_t>((LoadU16(block + 54) & 0xf000) |
                                                  (LoadU16(block + 52) >> 4 & 0x0f00)));
      });
    default:
      break;
  }
  const Halves halves = HalvesOf(dtype);
  return FirstNot(bytes, block_bytes, [halves](const uint8_t* block) {
    return IsFiniteHalf(LoadU16(block + halves.first)) &&
           (halves.second < 0 || IsFiniteHalf(LoadU16(block + halves.second)));
  });
}

}  // namespace switchyard::app
