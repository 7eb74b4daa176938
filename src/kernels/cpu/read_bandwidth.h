// Reading memory as fast as one thread can: what bandwidth is measured with.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/cpu_features.h"

namespace switchyard::kernels::cpu {

// Each stream is read in whole cache lines of this length.
inline constexpr int64_t kReadLineBytes = 64;

// Returns the sum of all 64-bit words of `data`, modulo 2^64. Reads it as `num_streams` adjacent
// pieces, a cache line of each in turn, in the widest loads of `level`: the processor then has as
// many misses under way as it can keep.
//
// Threads:  any.
// REQUIRES: `data` is 64-byte aligned; num_streams is 1, 2, 4 or 8; `bytes` is a multiple of
//           64 * num_streams; this machine runs `level`.
uint64_t SumWords(CpuLevel level, const std::byte* data, int64_t bytes, int num_streams);

}  // namespace switchyard::kernels::cpu
