// Looks for values that are no numbers in stored tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"

#include "base/dtype.h"

namespace switchyard::app {

// Returns the number of the first block (of a float type: element) in `bytes` that holds an
// infinity or NaN: in block formats as a scale or minimum, the only floats there. Everything else
// in a block is an integer, and every combination of integers is valid; so this decides whether all
// decoded values are finite.
//
// REQUIRES: bytes.size() is a multiple of the block's bytes.
std::optional<int64_t> FindNonFiniteBlock(DType dtype, absl::Span<const std::byte> bytes);

}  // namespace switchyard::app
