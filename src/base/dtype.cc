#include "base/dtype.h"

#include <array>

#include "base/check.h"

namespace switchyard {
namespace {

constexpr std::array<DTypeTraits, 22> kTraits = {{
    {DType::kF32, "F32", 1, 4},
    {DType::kF16, "F16", 1, 2},
    {DType::kQ4_0, "Q4_0", 32, 18},
    {DType::kQ4_1, "Q4_1", 32, 20},
    {DType::kQ5_0, "Q5_0", 32, 22},
    {DType::kQ5_1, "Q5_1", 32, 24},
    {DType::kQ8_0, "Q8_0", 32, 34},
    {DType::kQ2_K, "Q2_K", 256, 84},
    {DType::kQ3_K, "Q3_K", 256, 110},
    {DType::kQ4_K, "Q4_K", 256, 144},
    {DType::kQ5_K, "Q5_K", 256, 176},
    {DType::kQ6_K, "Q6_K", 256, 210},
    {DType::kIQ2_XXS, "IQ2_XXS", 256, 66},
    {DType::kIQ2_XS, "IQ2_XS", 256, 74},
    {DType::kIQ3_XXS, "IQ3_XXS", 256, 98},
    {DType::kIQ1_S, "IQ1_S", 256, 50},
    {DType::kIQ4_NL, "IQ4_NL", 32, 18},
    {DType::kIQ3_S, "IQ3_S", 256, 110},
    {DType::kIQ2_S, "IQ2_S", 256, 82},
    {DType::kIQ4_XS, "IQ4_XS", 256, 136},
    {DType::kIQ1_M, "IQ1_M", 256, 56},
    {DType::kBF16, "BF16", 1, 2},
}};

// Places in kTraits by GGUF id, -1 = none: kernels ask for traits with each product.
constexpr auto kPlaces = [] {
  std::array<int8_t, static_cast<size_t>(DType::kBF16) + 1> places{};
  places.fill(-1);
  for (size_t i = 0; i < kTraits.size(); ++i) {
    places[static_cast<size_t>(kTraits[i].dtype)] = static_cast<int8_t>(i);
  }
  return places;
}();

}  // namespace

const DTypeTraits& Traits(DType dtype) {
  const auto id = static_cast<size_t>(dtype);
  // A DType outside the enumerators is memory corruption.
  SWITCHYARD_CHECK(id < kPlaces.size() && kPlaces[id] >= 0);
  return kTraits[static_cast<size_t>(kPlaces[id])];
}

std::optional<DType> DTypeFromGgufId(uint32_t id) {
  for (const DTypeTraits& traits : kTraits) {
    if (static_cast<uint32_t>(traits.dtype) == id) return traits.dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DTypeTraits& traits : kTraits) {
    if (traits.name == name) return traits.dtype;
  }
  return std::nullopt;
}

int64_t RowBytes(DType dtype, int64_t num_elements) {
  const DTypeTraits& traits = Traits(dtype);
  SWITCHYARD_DCHECK(num_elements % traits.block_length == 0);
  return num_elements / traits.block_length * traits.block_bytes;
}

}  // namespace switchyard
