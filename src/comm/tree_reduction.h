// The sum (or maximum) over ranks by a fixed binary tree.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

#include "comm/communicator.h"

namespace switchyard::comm {

inline constexpr int kMaxRanks = 64;

// Reduces element by element over ranks. The tree adds neighbours, then neighbours of the results;
// an odd one is carried up unchanged: (0+1)+2 for three, ((0+1)+(2+3))+4 for five.
//
// F16 and BF16 are added in FP32 and rounded once at the end, to nearest, ties to even. I32 and U8
// wrap. A maximum with a NaN is a NaN.
//
// Shapes: parts[r] and out [count]; out does not overlap parts.
// REQUIRES: 1 <= parts.size() <= kMaxRanks.
void TreeReduce(absl::Span<const std::byte* const> parts, std::byte* out, int64_t count,
                DataType type, RedOp op);

// binary16 and bfloat16 as bits, to and from float; NaNs stay NaNs.
float FloatFromHalf(uint16_t half);
uint16_t HalfFromFloat(float value);
float FloatFromBFloat16(uint16_t bits);
uint16_t BFloat16FromFloat(float value);

}  // namespace switchyard::comm
