// Eight floats as one value, and sixteen: AVX-512 or AVX2 where this unit is compiled for them,
// plain C++ elsewhere.
//
// Included only by the units that are built once per instruction set (stage_kernels_*.cc). All
// code lives in a namespace named after the level, so that the linker never merges two levels, and
// it calls no standard library templates, whose weak symbols would be merged.
//
// Determinism: a lane's result does not depend on its place or on its neighbours, and the lane sums
// have one fixed order, ((0+4)+(2+6)) + ((1+5)+(3+7)).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define SWITCHYARD_SIMD_AVX512 1
#define SWITCHYARD_SIMD_AVX2 1
#define SWITCHYARD_SIMD_NAMESPACE simd_avx512
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SWITCHYARD_SIMD_AVX512 0
#define SWITCHYARD_SIMD_AVX2 1
#define SWITCHYARD_SIMD_NAMESPACE simd_avx2
#include <immintrin.h>
#else
#define SWITCHYARD_SIMD_AVX512 0
#define SWITCHYARD_SIMD_AVX2 0
#define SWITCHYARD_SIMD_NAMESPACE simd_portable
#endif

#define SWITCHYARD_SIMD_INLINE inline __attribute__((always_inline))

namespace switchyard::kernels::cpu::SWITCHYARD_SIMD_NAMESPACE {

inline constexpr int64_t kLanes = 8;

// Asks for the line `bytes` after `p`; nothing has to be there.
SWITCHYARD_SIMD_INLINE void PrefetchAfter(const void* p, uintptr_t bytes) {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + bytes));
}

#if SWITCHYARD_SIMD_AVX2

struct F8 {
  __m256 v;
};

SWITCHYARD_SIMD_INLINE F8 Zero() { return {_mm256_setzero_ps()}; }
SWITCHYARD_SIMD_INLINE F8 Set(float x) { return {_mm256_set1_ps(x)}; }
SWITCHYARD_SIMD_INLINE F8 Load(const float* p) { return {_mm256_loadu_ps(p)}; }
SWITCHYARD_SIMD_INLINE void Store(float* p, F8 x) { _mm256_storeu_ps(p, x.v); }

SWITCHYARD_SIMD_INLINE __m256i PartialMask(int64_t count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
}
// The first `count` < 8 lanes; the others are zero and their memory is not touched.
SWITCHYARD_SIMD_INLINE F8 LoadPartial(const float* p, int64_t count) {
  return {_mm256_maskload_ps(p, PartialMask(count))};
}
SWITCHYARD_SIMD_INLINE void StorePartial(float* p, F8 x, int64_t count) {
  _mm256_maskstore_ps(p, PartialMask(count), x.v);
}
SWITCHYARD_SIMD_INLINE F8 LoadHalf(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
SWITCHYARD_SIMD_INLINE void StoreHalf(uint16_t* p, F8 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
SWITCHYARD_SIMD_INLINE F8 LoadInt8(const int8_t* p) {
  return {_mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}

SWITCHYARD_SIMD_INLINE F8 operator+(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
SWITCHYARD_SIMD_INLINE F8 operator-(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
SWITCHYARD_SIMD_INLINE F8 operator*(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
SWITCHYARD_SIMD_INLINE F8 operator/(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
// a * b + c
SWITCHYARD_SIMD_INLINE F8 MulAdd(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// c - a * b
SWITCHYARD_SIMD_INLINE F8 NegMulAdd(F8 a, F8 b, F8 c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
// The second operand where either is NaN.
SWITCHYARD_SIMD_INLINE F8 Max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
SWITCHYARD_SIMD_INLINE F8 Min(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }
SWITCHYARD_SIMD_INLINE F8 Round(F8 x) {
  return {_mm256_round_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for integral n in [-126, 127].
SWITCHYARD_SIMD_INLINE F8 PowerOfTwo(F8 n) {
  const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(e, 23))};
}
// x where a >= b, else zero.
SWITCHYARD_SIMD_INLINE F8 ZeroUnlessGe(F8 a, F8 b, F8 x) {
  return {_mm256_and_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ), x.v)};
}

SWITCHYARD_SIMD_INLINE __m128 FoldHalves(F8 x) {
  return _mm_add_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
}
SWITCHYARD_SIMD_INLINE float Sum(F8 x) {
  const __m128 s = FoldHalves(x);
  const __m128 t = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_shuffle_ps(t, t, 1)));
}
// The sums of four values, each in the order of Sum().
SWITCHYARD_SIMD_INLINE void Sum4(F8 a, F8 b, F8 c, F8 d, float* out) {
  const __m128 sa = FoldHalves(a), sb = FoldHalves(b), sc = FoldHalves(c), sd = FoldHalves(d);
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(sa, sb), _mm_unpackhi_ps(sa, sb));
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(sc, sd), _mm_unpackhi_ps(sc, sd));
  _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}

// Transposes eight rows of eight.
SWITCHYARD_SIMD_INLINE void Transpose(F8 r[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i].v, r[2 * i + 1].v);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i].v, r[2 * i + 1].v);
  }
  for (int i = 0; i < 2; ++i) {
    u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i].v = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4].v = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

#else  // portable

struct F8 {
  float v[8];
};

template <typename Function>
SWITCHYARD_SIMD_INLINE F8 PerLane(Function f) {
  F8 r;
  for (int i = 0; i < 8; ++i) r.v[i] = f(i);
  return r;
}

SWITCHYARD_SIMD_INLINE F8 Set(float x) {
  return PerLane([&](int) { return x; });
}
SWITCHYARD_SIMD_INLINE F8 Zero() { return Set(0.0f); }
SWITCHYARD_SIMD_INLINE F8 Load(const float* p) {
  F8 r;
  std::memcpy(r.v, p, sizeof(r.v));
  return r;
}
SWITCHYARD_SIMD_INLINE void Store(float* p, F8 x) { std::memcpy(p, x.v, sizeof(x.v)); }
// The first `count` < 8 lanes; the others are zero and their memory is not touched.
SWITCHYARD_SIMD_INLINE F8 LoadPartial(const float* p, int64_t count) {
  return PerLane([&](int i) { return i < count ? p[i] : 0.0f; });
}
SWITCHYARD_SIMD_INLINE void StorePartial(float* p, F8 x, int64_t count) {
  for (int i = 0; i < count; ++i) p[i] = x.v[i];
}

SWITCHYARD_SIMD_INLINE float HalfToFloat(uint16_t h) {
  // Scaled so that subnormal halves become normal floats; infinities keep their exponent apart.
  const uint32_t magnitude = static_cast<uint32_t>(h & 0x7fff) << 13;
  uint32_t bits = magnitude;
  if (magnitude >= 0x0f800000u) bits |= 0x70000000u;  // infinity or NaN
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  if (magnitude < 0x0f800000u) f *= 0x1p112f;
  return (h & 0x8000) ? -f : f;
}
SWITCHYARD_SIMD_INLINE uint16_t FloatToHalf(float f) {  // to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof(bits));
  const uint32_t sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (bits >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (bits < 0x38800000u) {  // subnormal half: units of 2^-24
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof(magnitude));
    magnitude += 0.5f;  // float units in [0.5, 1) are 2^-24: the sum rounds for us
    std::memcpy(&bits, &magnitude, sizeof(bits));
    return static_cast<uint16_t>(sign | (bits - 0x3f000000u));
  }
  bits += 0xc8000000u + 0xfffu + ((bits >> 13) & 1u);  // rebias, round
  return static_cast<uint16_t>(sign | (bits >> 13));
}
SWITCHYARD_SIMD_INLINE F8 LoadHalf(const uint16_t* p) {
  return PerLane([&](int i) { return HalfToFloat(p[i]); });
}
SWITCHYARD_SIMD_INLINE void StoreHalf(uint16_t* p, F8 x) {
  for (int i = 0; i < 8; ++i) p[i] = FloatToHalf(x.v[i]);
}
SWITCHYARD_SIMD_INLINE F8 LoadInt8(const int8_t* p) {
  return PerLane([&](int i) { return static_cast<float>(p[i]); });
}

SWITCHYARD_SIMD_INLINE F8 operator+(F8 a, F8 b) {
  return PerLane([&](int i) { return a.v[i] + b.v[i]; });
}
SWITCHYARD_SIMD_INLINE F8 operator-(F8 a, F8 b) {
  return PerLane([&](int i) { return a.v[i] - b.v[i]; });
}
SWITCHYARD_SIMD_INLINE F8 operator*(F8 a, F8 b) {
  return PerLane([&](int i) { return a.v[i] * b.v[i]; });
}
SWITCHYARD_SIMD_INLINE F8 operator/(F8 a, F8 b) {
  return PerLane([&](int i) { return a.v[i] / b.v[i]; });
}
// a * b + c, rounded once as in the other level, so that both give the same bits.
SWITCHYARD_SIMD_INLINE F8 MulAdd(F8 a, F8 b, F8 c) {
  return PerLane([&](int i) { return fmaf(a.v[i], b.v[i], c.v[i]); });
}
// c - a * b
SWITCHYARD_SIMD_INLINE F8 NegMulAdd(F8 a, F8 b, F8 c) {
  return PerLane([&](int i) { return fmaf(-a.v[i], b.v[i], c.v[i]); });
}
// The second operand where either is NaN.
SWITCHYARD_SIMD_INLINE F8 Max(F8 a, F8 b) {
  return PerLane([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
SWITCHYARD_SIMD_INLINE F8 Min(F8 a, F8 b) {
  return PerLane([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
SWITCHYARD_SIMD_INLINE F8 Round(F8 x) {
  return PerLane([&](int i) { return nearbyintf(x.v[i]); });
}
// 2^n for integral n in [-126, 127].
SWITCHYARD_SIMD_INLINE F8 PowerOfTwo(F8 n) {
  return PerLane([&](int i) {
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n.v[i]) + 127) << 23;
    float f;
    std::memcpy(&f, &bits, sizeof(f));
    return f;
  });
}
// x where a >= b, else zero.
SWITCHYARD_SIMD_INLINE F8 ZeroUnlessGe(F8 a, F8 b, F8 x) {
  return PerLane([&](int i) { return a.v[i] >= b.v[i] ? x.v[i] : 0.0f; });
}
SWITCHYARD_SIMD_INLINE float Sum(F8 x) {
  return ((x.v[0] + x.v[4]) + (x.v[2] + x.v[6])) + ((x.v[1] + x.v[5]) + (x.v[3] + x.v[7]));
}
// The sums of four values, each in the order of Sum().
SWITCHYARD_SIMD_INLINE void Sum4(F8 a, F8 b, F8 c, F8 d, float* out) {
  out[0] = Sum(a);
  out[1] = Sum(b);
  out[2] = Sum(c);
  out[3] = Sum(d);
}
// Transposes eight rows of eight.
SWITCHYARD_SIMD_INLINE void Transpose(F8 r[8]) {
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < i; ++j) {
      const float t = r[i].v[j];
      r[i].v[j] = r[j].v[i];
      r[j].v[i] = t;
    }
  }
}

#endif

// ---- sixteen floats -------------------------------------------------------------------------

inline constexpr int64_t kWideLanes = 16;

#if SWITCHYARD_SIMD_AVX512

struct Wide {
  __m512 v;
};

SWITCHYARD_SIMD_INLINE Wide Join(F8 low, F8 high) {
  return {_mm512_insertf32x8(_mm512_castps256_ps512(low.v), high.v, 1)};
}
SWITCHYARD_SIMD_INLINE F8 Low(Wide x) { return {_mm512_castps512_ps256(x.v)}; }
SWITCHYARD_SIMD_INLINE F8 High(Wide x) { return {_mm512_extractf32x8_ps(x.v, 1)}; }
SWITCHYARD_SIMD_INLINE Wide WideSet(float x) { return {_mm512_set1_ps(x)}; }
SWITCHYARD_SIMD_INLINE Wide WideLoad(const float* p) { return {_mm512_loadu_ps(p)}; }
SWITCHYARD_SIMD_INLINE void Store(float* p, Wide x) { _mm512_storeu_ps(p, x.v); }
// Eight floats in both halves.
SWITCHYARD_SIMD_INLINE Wide LoadTwice(const float* p) {
  return {_mm512_broadcast_f32x8(_mm256_loadu_ps(p))};
}
SWITCHYARD_SIMD_INLINE Wide WideLoadHalf(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// Eight halves from each of two places.
SWITCHYARD_SIMD_INLINE Wide JoinHalves(const uint16_t* low, const uint16_t* high) {
  const __m256i low_bits =
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low)));
  return {_mm512_cvtph_ps(_mm256_inserti128_si256(
      low_bits, _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1))};
}
SWITCHYARD_SIMD_INLINE Wide operator+(Wide a, Wide b) { return {_mm512_add_ps(a.v, b.v)}; }
SWITCHYARD_SIMD_INLINE Wide operator-(Wide a, Wide b) { return {_mm512_sub_ps(a.v, b.v)}; }
SWITCHYARD_SIMD_INLINE Wide operator*(Wide a, Wide b) { return {_mm512_mul_ps(a.v, b.v)}; }
SWITCHYARD_SIMD_INLINE Wide operator/(Wide a, Wide b) { return {_mm512_div_ps(a.v, b.v)}; }
SWITCHYARD_SIMD_INLINE Wide MulAdd(Wide a, Wide b, Wide c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
SWITCHYARD_SIMD_INLINE Wide NegMulAdd(Wide a, Wide b, Wide c) {
  return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}
SWITCHYARD_SIMD_INLINE Wide Max(Wide a, Wide b) { return {_mm512_max_ps(a.v, b.v)}; }
SWITCHYARD_SIMD_INLINE Wide Min(Wide a, Wide b) { return {_mm512_min_ps(a.v, b.v)}; }
SWITCHYARD_SIMD_INLINE Wide Round(Wide x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
SWITCHYARD_SIMD_INLINE Wide PowerOfTwo(Wide n) {
  const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
}
SWITCHYARD_SIMD_INLINE Wide ZeroUnlessGe(Wide a, Wide b, Wide x) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ), x.v)};
}
// The sums of the halves of four values, each in the order of Sum().
SWITCHYARD_SIMD_INLINE void SumHalves4(Wide a, Wide b, Wide c, Wide d, float* low, float* high) {
  // Quarters: [a low, a high, b low, b high], and the same of c and d.
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x88), _mm512_shuffle_f32x4(a.v, b.v, 0xdd));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x88), _mm512_shuffle_f32x4(c.v, d.v, 0xdd));
  const __m512 pairs = _mm512_add_ps(_mm512_unpacklo_ps(ab, cd), _mm512_unpackhi_ps(ab, cd));
  float sums[16];  // per quarter: of a and c, or of b and d
  _mm512_storeu_ps(sums, _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0x4e)));
  low[0] = sums[0];
  low[2] = sums[1];
  high[0] = sums[4];
  high[2] = sums[5];
  low[1] = sums[8];
  low[3] = sums[9];
  high[1] = sums[12];
  high[3] = sums[13];
}

#else

struct Wide {
  F8 low, high;
};

SWITCHYARD_SIMD_INLINE Wide Join(F8 low, F8 high) { return {low, high}; }
SWITCHYARD_SIMD_INLINE F8 Low(Wide x) { return x.low; }
SWITCHYARD_SIMD_INLINE F8 High(Wide x) { return x.high; }
SWITCHYARD_SIMD_INLINE Wide WideSet(float x) { return {Set(x), Set(x)}; }
SWITCHYARD_SIMD_INLINE Wide WideLoad(const float* p) { return {Load(p), Load(p + kLanes)}; }
SWITCHYARD_SIMD_INLINE void Store(float* p, Wide x) {
  Store(p, x.low);
  Store(p + kLanes, x.high);
}
// Eight floats in both halves.
SWITCHYARD_SIMD_INLINE Wide LoadTwice(const float* p) { return {Load(p), Load(p)}; }
SWITCHYARD_SIMD_INLINE Wide WideLoadHalf(const uint16_t* p) {
  return {LoadHalf(p), LoadHalf(p + kLanes)};
}
// Eight halves from each of two places.
SWITCHYARD_SIMD_INLINE Wide JoinHalves(const uint16_t* low, const uint16_t* high) {
  return {LoadHalf(low), LoadHalf(high)};
}
SWITCHYARD_SIMD_INLINE Wide operator+(Wide a, Wide b) { return {a.low + b.low, a.high + b.high}; }
SWITCHYARD_SIMD_INLINE Wide operator-(Wide a, Wide b) { return {a.low - b.low, a.high - b.high}; }
SWITCHYARD_SIMD_INLINE Wide operator*(Wide a, Wide b) { return {a.low * b.low, a.high * b.high}; }
SWITCHYARD_SIMD_INLINE Wide operator/(Wide a, Wide b) { return {a.low / b.low, a.high / b.high}; }
SWITCHYARD_SIMD_INLINE Wide MulAdd(Wide a, Wide b, Wide c) {
  return {MulAdd(a.low, b.low, c.low), MulAdd(a.high, b.high, c.high)};
}
SWITCHYARD_SIMD_INLINE Wide NegMulAdd(Wide a, Wide b, Wide c) {
  return {NegMulAdd(a.low, b.low, c.low), NegMulAdd(a.high, b.high, c.high)};
}
SWITCHYARD_SIMD_INLINE Wide Max(Wide a, Wide b) { return {Max(a.low, b.low), Max(a.high, b.high)}; }
SWITCHYARD_SIMD_INLINE Wide Min(Wide a, Wide b) { return {Min(a.low, b.low), Min(a.high, b.high)}; }
SWITCHYARD_SIMD_INLINE Wide Round(Wide x) { return {Round(x.low), Round(x.high)}; }
SWITCHYARD_SIMD_INLINE Wide PowerOfTwo(Wide n) { return {PowerOfTwo(n.low), PowerOfTwo(n.high)}; }
SWITCHYARD_SIMD_INLINE Wide ZeroUnlessGe(Wide a, Wide b, Wide x) {
  return {ZeroUnlessGe(a.low, b.low, x.low), ZeroUnlessGe(a.high, b.high, x.high)};
}
// The sums of the halves of four values, each in the order of Sum().
SWITCHYARD_SIMD_INLINE void SumHalves4(Wide a, Wide b, Wide c, Wide d, float* low, float* high) {
  Sum4(a.low, b.low, c.low, d.low, low);
  Sum4(a.high, b.high, c.high, d.high, high);
}

#endif

// A value in all lanes, and a load, of either width.
template <typename V>
SWITCHYARD_SIMD_INLINE V Splat(float x);
template <>
SWITCHYARD_SIMD_INLINE F8 Splat<F8>(float x) {
  return Set(x);
}
template <>
SWITCHYARD_SIMD_INLINE Wide Splat<Wide>(float x) {
  return WideSet(x);
}
template <typename V>
SWITCHYARD_SIMD_INLINE V LoadAs(const float* p);
template <>
SWITCHYARD_SIMD_INLINE F8 LoadAs<F8>(const float* p) {
  return Load(p);
}
template <>
SWITCHYARD_SIMD_INLINE Wide LoadAs<Wide>(const float* p) {
  return WideLoad(p);
}
template <typename V>
inline constexpr int64_t kLanesOf = static_cast<int64_t>(sizeof(V) / sizeof(float));

// Calls body(offset, load, store) for each vector of eight of `n` elements; the last one may be
// partial but runs the same code, so an element's result does not depend on where its row ends.
template <typename Body>
SWITCHYARD_SIMD_INLINE void ForEachEight(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    body(
        i, [](const float* p) __attribute__((always_inline)) { return Load(p); },
        [](float* p, F8 x) __attribute__((always_inline)) { Store(p, x); });
  }
  if (i < n) {
    const int64_t count = n - i;
    body(
        i, [count](const float* p) __attribute__((always_inline)) { return LoadPartial(p, count); },
        [count](float* p, F8 x) __attribute__((always_inline)) { StorePartial(p, x, count); });
  }
}

// The same with vectors V of sixteen first, for work on each element by itself:
// body.operator()<V>(offset, load, store).
template <typename Body>
SWITCHYARD_SIMD_INLINE void ForEachVector(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kWideLanes <= n; i += kWideLanes) {
    body.template operator()<Wide>(
        i, [](const float* p) __attribute__((always_inline)) { return WideLoad(p); },
        [](float* p, Wide x) __attribute__((always_inline)) { Store(p, x); });
  }
  ForEachEight(
      n - i, [&](int64_t j, auto load, auto store) __attribute__((always_inline)) {
        body.template operator()<F8>(i + j, load, store);
      });
}

}  // namespace switchyard::kernels::cpu::SWITCHYARD_SIMD_NAMESPACE
