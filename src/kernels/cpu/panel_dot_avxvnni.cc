// The AVX-VNNI level over row panels: one vector holds four columns of eight rows.
#include <cstring>
#include <immintrin.h>

#include "kernels/cpu/float_dot.h"
#include "kernels/cpu/panel_dot.h"
#include "kernels/cpu/panel_dot_vnni.h"

namespace switchyard::kernels::cpu {
namespace {

struct AvxVnni {
  using Bytes = __m256i;
  using Floats = __m256;
  static constexpr int kVectorRows = 8;
  static constexpr int kMaxXRows = 4;
  // From as many activation rows on, expanding a panel first is faster (Zen 5: even at 8 to 9).
  static constexpr int64_t kExpandFromRows = 9;
  // 6 integer sums, 6 float sums, the weights of 4 columns and one broadcast: 15 of 16 registers.
  static constexpr int kTileSlices = 2;
  static constexpr int kTileXRows = 3;
  static constexpr int64_t kTileColumns = 1024;

  SWITCHYARD_INLINE static Bytes Load(const uint8_t* bytes) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
  }
  SWITCHYARD_INLINE static void StoreBytes(uint8_t* to, Bytes x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x);
  }
  SWITCHYARD_INLINE static Floats LoadFloats(const float* from) { return _mm256_loadu_ps(from); }
  SWITCHYARD_INLINE static void Store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
  SWITCHYARD_INLINE static Bytes BroadcastBytes(const std::byte* four) {
    int32_t word;
    std::memcpy(&word, four, sizeof(word));
    return _mm256_set1_epi32(word);
  }
  SWITCHYARD_INLINE static Floats BroadcastFloat(const std::byte* from) {
    float value;
    std::memcpy(&value, from, sizeof(value));
    return _mm256_set1_ps(value);
  }
  SWITCHYARD_INLINE static Floats LoadHalves(const uint8_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  template <bool kSigned>
  SWITCHYARD_INLINE static Floats LoadScales(const uint8_t* from) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm256_cvtepi32_ps(kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
  }

  SWITCHYARD_INLINE static Bytes Zero() { return _mm256_setzero_si256(); }
  SWITCHYARD_INLINE static Bytes AllBytes(int byte) {
    return _mm256_set1_epi8(static_cast<char>(byte));
  }
  SWITCHYARD_INLINE static Floats All(float x) { return _mm256_set1_ps(x); }

  SWITCHYARD_INLINE static Bytes Table(const uint8_t* values) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  }
  // By the low four bits of each code.
  SWITCHYARD_INLINE static Bytes Lookup(Bytes table, Bytes codes) {
    return _mm256_shuffle_epi8(table, And(codes, AllBytes(0x0f)));
  }
  SWITCHYARD_INLINE static Bytes And(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
  // a | (b & mask)
  SWITCHYARD_INLINE static Bytes OrMasked(Bytes a, Bytes b, Bytes mask) {
    return _mm256_or_si256(a, And(b, mask));
  }
  template <int kBits>
  SWITCHYARD_INLINE static Bytes ShiftLeft(Bytes x) {
    return _mm256_slli_epi16(x, kBits);
  }
  template <int kBits>
  SWITCHYARD_INLINE static Bytes ShiftRight(Bytes x) {
    return _mm256_srli_epi16(x, kBits);
  }
  template <int kBits>
  SWITCHYARD_INLINE static Bytes ShiftRightSigned(Bytes x) {
    return _mm256_srai_epi32(x, kBits);
  }
  SWITCHYARD_INLINE static Bytes Add(Bytes a, Bytes b) { return _mm256_add_epi32(a, b); }
  SWITCHYARD_INLINE static Bytes AddBytes(Bytes a, Bytes b) { return _mm256_add_epi8(a, b); }
  SWITCHYARD_INLINE static Bytes Dot(Bytes sum, Bytes weights, Bytes quants) {
    return _mm256_dpbusd_avx_epi32(sum, weights, quants);
  }

  SWITCHYARD_INLINE static Floats ToFloats(Bytes x) { return _mm256_cvtepi32_ps(x); }
  SWITCHYARD_INLINE static Floats Negate(Floats x) {
    return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
  }
  SWITCHYARD_INLINE static Floats Multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  SWITCHYARD_INLINE static Floats MultiplyAdd(Floats a, Floats b, Floats c) {
    return _mm256_fmadd_ps(a, b, c);
  }
  // c - a b
  SWITCHYARD_INLINE static Floats NegatedMultiplyAdd(Floats a, Floats b, Floats c) {
    return _mm256_fnmadd_ps(a, b, c);
  }
};

FormatFunctions Format(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {nullptr, nullptr, DotF32Avx2};
    case DType::kF16:
      return {nullptr, nullptr, DotF16Avx2};
    case DType::kBF16:
      return {nullptr, nullptr, DotBF16Avx2};
    default:
      return PanelFunctions<AvxVnni>(dtype);
  }
}

}  // namespace

const LevelFunctions kAvxVnniFunctions = {Format, DotExpanded<AvxVnni>, QuantizeRowAvx2};

}  // namespace switchyard::kernels::cpu
