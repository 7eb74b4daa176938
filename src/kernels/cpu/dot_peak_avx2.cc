// Built for AVX2 (roofline.cmake).
#include <immintrin.h>

#include "kernels/cpu/dot_peak_level.h"

namespace switchyard::kernels::cpu {
namespace {

struct Avx2Dot {
  static __m256i Fill(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
  static __m256i Add(__m256i acc, __m256i left, __m256i right) {
    const __m256i pairs = _mm256_maddubs_epi16(left, right);
    return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static void Store(__m256i acc, uint32_t* lanes) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), acc);
  }
};

}  // namespace

DotPeakRun RunDotPeakAvx2(int64_t num_operations) {
  return RunDotChains<Avx2Dot, __m256i, 8>(num_operations);
}

}  // namespace switchyard::kernels::cpu
