// The loop of dot_peak.h over vectors of one level. Private to dot_peak*.cc.
#pragma once

#include <cstdint>

#include "kernels/cpu/dot_peak.h"

namespace switchyard::kernels::cpu {

DotPeakRun RunDotPeakAvx2(int64_t num_operations);
DotPeakRun RunDotPeakAvxVnni(int64_t num_operations);
DotPeakRun RunDotPeakAvx512(int64_t num_operations);

// In an unnamed namespace: each file that includes this compiles it for its own instruction set.
namespace {

inline constexpr int kDotPeakLeft = 3;   // each unsigned byte
inline constexpr int kDotPeakRight = 2;  // each signed byte

// `Vector` is a register type, `Dot::Add(acc, left, right)` adds the products of groups of four
// bytes to lanes of 32 bits; `Dot::Fill(byte)` and `Dot::Store(acc, lanes)` are what they say.
// `kChains` accumulators hide the latency of a product (twelve for two products a cycle of five
// cycles each) and leave registers for the operands.
template <typename Dot, typename Vector, int kChains>
DotPeakRun RunDotChains(int64_t num_operations) {
  constexpr int64_t kLanes = static_cast<int64_t>(sizeof(Vector) / sizeof(int32_t));
  constexpr int64_t kOperationsPerPass = int64_t{kChains} * kLanes * 4 * 2;
  const int64_t num_passes = num_operations / kOperationsPerPass + 1;
  Vector acc[kChains];
  for (Vector& chain : acc) chain = Dot::Fill(0);
  Vector left = Dot::Fill(kDotPeakLeft);
  Vector right = Dot::Fill(kDotPeakRight);
  for (int64_t pass = 0; pass < num_passes; ++pass) {
    // Unrolled, or the accumulators are an array in memory.
#pragma GCC unroll 32
    for (Vector& chain : acc) {
      // The compiler must not see that the operands stay the same, or it takes the product out of
      // the loop.
      __asm__ volatile("" : "+x"(left), "+x"(right));
      chain = Dot::Add(chain, left, right);
    }
  }
  // Sums wrap around in 32 bits, as the expected one does.
  const auto expected = static_cast<uint32_t>(num_passes * 4 * kDotPeakLeft * kDotPeakRight);
  DotPeakRun run = {num_passes * kOperationsPerPass, true};
  for (const Vector& chain : acc) {
    alignas(64) uint32_t lanes[kLanes];
    Dot::Store(chain, lanes);
    for (const uint32_t lane : lanes) run.is_correct &= lane == expected;
  }
  return run;
}

}  // namespace
}  // namespace switchyard::kernels::cpu
