// exp, sigmoid and SiLU on eight or sixteen floats. Level code: see simd.h.
#pragma once

#include "kernels/cpu/simd.h"

namespace switchyard::kernels::cpu::SWITCHYARD_SIMD_NAMESPACE {

// e^x; 0 below -87.3 (where the result would leave the normal range) and of NaN, 3.3e38 from 88.7
// on.
// Relative error below 2^-22: after x = n ln 2 + r with |r| <= ln 2 / 2 and ln 2 in two parts, the
// Taylor polynomial of degree 7 is off by at most r^8 / 8! = 5e-9, the rest is rounding.
template <typename V>
SWITCHYARD_SIMD_INLINE V Exp(V x) {
  const V low = Splat<V>(-87.3f);
  const V clamped = Min(Max(x, low), Splat<V>(88.7f));
  const V n = Round(clamped * Splat<V>(1.44269504f));
  V r = NegMulAdd(n, Splat<V>(0x1.62e4p-1f), clamped);  // 15 bits: n times it is exact
  r = NegMulAdd(n, Splat<V>(1.42860677e-6f), r);        // ln 2 - 0x1.62e4p-1
  V p = Splat<V>(1.0f / 5040);
  p = MulAdd(p, r, Splat<V>(1.0f / 720));
  p = MulAdd(p, r, Splat<V>(1.0f / 120));
  p = MulAdd(p, r, Splat<V>(1.0f / 24));
  p = MulAdd(p, r, Splat<V>(1.0f / 6));
  p = MulAdd(p, r, Splat<V>(0.5f));
  p = MulAdd(p, r, Splat<V>(1.0f));
  p = MulAdd(p, r, Splat<V>(1.0f));
  // n reaches 128 only with r < 0: halve the exponent so that the power itself stays finite.
  const V half = Round(n * Splat<V>(0.5f));
  return ZeroUnlessGe(x, low, (p * PowerOfTwo(half)) * PowerOfTwo(n - half));
}

template <typename V>
SWITCHYARD_SIMD_INLINE V Sigmoid(V x) {
  const V one = Splat<V>(1.0f);
  return one / (one + Exp(Splat<V>(0.0f) - x));
}

template <typename V>
SWITCHYARD_SIMD_INLINE V Silu(V x) {
  return x * Sigmoid(x);
}

}  // namespace switchyard::kernels::cpu::SWITCHYARD_SIMD_NAMESPACE
