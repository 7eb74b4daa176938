// Built for AVX-VNNI (roofline.cmake).
#include <immintrin.h>

#include "kernels/cpu/dot_peak_level.h"

namespace switchyard::kernels::cpu {
namespace {

struct AvxVnniDot {
  static __m256i Fill(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
  static __m256i Add(__m256i acc, __m256i left, __m256i right) {
    return _mm256_dpbusd_avx_epi32(acc, left, right);
  }
  static void Store(__m256i acc, uint32_t* lanes) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), acc);
  }
};

}  // namespace

DotPeakRun RunDotPeakAvxVnni(int64_t num_operations) {
  return RunDotChains<AvxVnniDot, __m256i, 12>(num_operations);
}

}  // namespace switchyard::kernels::cpu
