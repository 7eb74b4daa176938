// The loop of read_bandwidth.h over vectors of one level. Private to read_bandwidth*.cc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchyard::kernels::cpu {

using SumWordsFunction = uint64_t (*)(const std::byte* data, int64_t bytes, int num_streams);

uint64_t SumWordsAvx2(const std::byte* data, int64_t bytes, int num_streams);
uint64_t SumWordsAvx512(const std::byte* data, int64_t bytes, int num_streams);

// In an unnamed namespace: each file that includes this compiles it for its own instruction set.
namespace {

// `Line` adds up cache lines: Add(const std::byte*) takes one, Sum() gives the words' sum.
template <typename Line, int kStreams>
uint64_t SumStreams(const std::byte* data, int64_t bytes) {
  const int64_t stream_bytes = bytes / kStreams;
  Line sums[kStreams];
  for (int64_t offset = 0; offset < stream_bytes; offset += 64) {
    // Unrolled, so that the sums stay in registers.
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; ++s) sums[s].Add(data + s * stream_bytes + offset);
  }
  uint64_t sum = 0;
  for (const Line& line : sums) sum += line.Sum();
  return sum;
}

template <typename Line>
uint64_t SumLines(const std::byte* data, int64_t bytes, int num_streams) {
  switch (num_streams) {
    case 8:
      return SumStreams<Line, 8>(data, bytes);
    case 4:
      return SumStreams<Line, 4>(data, bytes);
    case 2:
      return SumStreams<Line, 2>(data, bytes);
    default:
      return SumStreams<Line, 1>(data, bytes);
  }
}

}  // namespace
}  // namespace switchyard::kernels::cpu
