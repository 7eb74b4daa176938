// The AVX-512 VNNI level over row panels: one vector holds four columns of sixteen rows.
#include <cstring>
#include <immintrin.h>

#include "kernels/cpu/float_dot.h"
#include "kernels/cpu/panel_dot.h"
#include "kernels/cpu/panel_dot_vnni.h"

namespace switchyard::kernels::cpu {
namespace {

struct Avx512 {
  using Bytes = __m512i;
  using Floats = __m512;
  static constexpr int kVectorRows = 16;
  static constexpr int kMaxXRows = 8;
  // From as many activation rows on, expanding a panel first is faster (Zen 5: even at 12 to 14).
  static constexpr int64_t kExpandFromRows = 13;
  // 12 integer sums, 12 float sums, the weights of 4 columns and one broadcast: 27 of 32 registers.
  static constexpr int kTileSlices = 2;
  static constexpr int kTileXRows = 6;
  static constexpr int64_t kTileColumns = 512;

  SWITCHYARD_INLINE static Bytes Load(const uint8_t* bytes) { return _mm512_loadu_si512(bytes); }
  SWITCHYARD_INLINE static void StoreBytes(uint8_t* to, Bytes x) { _mm512_storeu_si512(to, x); }
  SWITCHYARD_INLINE static Floats LoadFloats(const float* from) { return _mm512_loadu_ps(from); }
  SWITCHYARD_INLINE static void Store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
  SWITCHYARD_INLINE static Bytes BroadcastBytes(const std::byte* four) {
    int32_t word;
    std::memcpy(&word, four, sizeof(word));
    return _mm512_set1_epi32(word);
  }
  SWITCHYARD_INLINE static Floats BroadcastFloat(const std::byte* from) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return _mm512_set1_ps(value);
  }
  SWITCHYARD_INLINE static Floats LoadHalves(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  template <bool kSigned>
  SWITCHYARD_INLINE static Floats LoadScales(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtepi32_ps(kSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
  }

  SWITCHYARD_INLINE static Bytes Zero() { return _mm512_setzero_si512(); }
  SWITCHYARD_INLINE static Bytes AllBytes(int byte) {
    return _mm512_set1_epi8(static_cast<char>(byte));
  }
  SWITCHYARD_INLINE static Floats All(float x) { return _mm512_set1_ps(x); }

  // The table four times: vpermb then ignores bits 4 to 7 of a code.
  SWITCHYARD_INLINE static Bytes Table(const uint8_t* values) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  }
  SWITCHYARD_INLINE static Bytes Lookup(Bytes table, Bytes codes) {
    return _mm512_permutexvar_epi8(codes, table);
  }
  SWITCHYARD_INLINE static Bytes And(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
  // a | (b & mask)
  SWITCHYARD_INLINE static Bytes OrMasked(Bytes a, Bytes b, Bytes mask) {
    return _mm512_ternarylogic_epi32(a, b, mask, 0xf8);
  }
  template <int kBits>
  SWITCHYARD_INLINE static Bytes ShiftLeft(Bytes x) {
    return _mm512_slli_epi16(x, kBits);
  }
  template <int kBits>
  SWITCHYARD_INLINE static Bytes ShiftRight(Bytes x) {
    return _mm512_srli_epi16(x, kBits);
  }
  template <int kBits>
  SWITCHYARD_INLINE static Bytes ShiftRightSigned(Bytes x) {
    return _mm512_srai_epi32(x, kBits);
  }
  SWITCHYARD_INLINE static Bytes Add(Bytes a, Bytes b) { return _mm512_add_epi32(a, b); }
  SWITCHYARD_INLINE static Bytes AddBytes(Bytes a, Bytes b) { return _mm512_add_epi8(a, b); }
  SWITCHYARD_INLINE static Bytes Dot(Bytes sum, Bytes weights, Bytes quants) {
    return _mm512_dpbusd_epi32(sum, weights, quants);
  }

  SWITCHYARD_INLINE static Floats ToFloats(Bytes x) { return _mm512_cvtepi32_ps(x); }
  SWITCHYARD_INLINE static Floats Negate(Floats x) {
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
  }
  SWITCHYARD_INLINE static Floats Multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  SWITCHYARD_INLINE static Floats MultiplyAdd(Floats a, Floats b, Floats c) {
    return _mm512_fmadd_ps(a, b, c);
  }
  // c - a b
  SWITCHYARD_INLINE static Floats NegatedMultiplyAdd(Floats a, Floats b, Floats c) {
    return _mm512_fnmadd_ps(a, b, c);
  }
};

FormatFunctions Format(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {nullptr, nullptr, DotF32Avx512};
    case DType::kF16:
      return {nullptr, nullptr, DotF16Avx512};
    case DType::kBF16:
      return {nullptr, nullptr, DotBF16Avx512};
    default:
      return PanelFunctions<Avx512>(dtype);
  }
}

}  // namespace

const LevelFunctions kAvx512VnniFunctions = {Format, DotExpanded<Avx512>, QuantizeRowAvx512};

}  // namespace switchyard::kernels::cpu
