// Values of synthetic tensors, in any stored type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "app/synth/random_source.h"
#include "app/synth/tensor_list.h"
#include "base/dtype.h"

namespace switchyard::app {

// Fills whole blocks of a block format with valid ones: random codes, signs and sub-scales, and
// block scales spread by a quarter around `scale`. Values are symmetric around 0 on average, also
// in formats with a minimum and in those whose codes are not symmetric.
//
// Units:    the deviation of the values is scale * UnitDeviation(dtype).
// REQUIRES: blocks.size() is a multiple of the block's bytes; scale is in the range of halves.
void FillBlocks(DType dtype, float scale, RandomSource& random, absl::Span<std::byte> blocks);

// Deviation of values of FillBlocks() with scale 1, measured once per type.
// REQUIRES: dtype is a block format.
double UnitDeviation(DType dtype);

// Draws the values of `tensor`, which depend on its name and on `seed` only, and hands them to
// `write` piece by piece. Stops at its first error and returns it.
absl::Status WriteTensorData(const SynthTensor& tensor, uint64_t seed,
                             const std::function<absl::Status(absl::Span<const std::byte>)>& write);

}  // namespace switchyard::app
