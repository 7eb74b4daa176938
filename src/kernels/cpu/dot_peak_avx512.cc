// Built for AVX-512 with VNNI (roofline.cmake).
#include <immintrin.h>

#include "kernels/cpu/dot_peak_level.h"

namespace switchyard::kernels::cpu {
namespace {

struct Avx512Dot {
  static __m512i Fill(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
  static __m512i Add(__m512i acc, __m512i left, __m512i right) {
    return _mm512_dpbusd_epi32(acc, left, right);
  }
  static void Store(__m512i acc, uint32_t* lanes) { _mm512_store_si512(lanes, acc); }
};

}  // namespace

DotPeakRun RunDotPeakAvx512(int64_t num_operations) {
  return RunDotChains<Avx512Dot, __m512i, 12>(num_operations);
}

}  // namespace switchyard::kernels::cpu
