// Element types of tensors, the quantised types of GGUF files included.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace switchyard {

// Enumerators carry the type's id in GGUF files. Block layouts: kernels/quant/.
enum class DType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kIQ1_M = 29,
  kBF16 = 30,
};

struct DTypeTraits {
  DType dtype;
  std::string_view name;  // as GGUF tools print it: "IQ4_XS"
  int block_length;       // elements of one block; a row is a whole number of blocks
  int block_bytes;        // bytes of one block in a file
};

// Returns the traits of a type. REQUIRES: `dtype` is one of the enumerators.
const DTypeTraits& Traits(DType dtype);

// Returns the type with this GGUF id, or nothing if the id is unknown, removed or never in files.
std::optional<DType> DTypeFromGgufId(uint32_t id);

// Returns the type with this name ("Q8_0"), or nothing. Case matters.
std::optional<DType> DTypeFromName(std::string_view name);

// Bytes of a row of `num_elements`. REQUIRES: num_elements is a multiple of the block length.
int64_t RowBytes(DType dtype, int64_t num_elements);

}  // namespace switchyard
