// Built for AVX2 (roofline.cmake).
#include <immintrin.h>

#include "kernels/cpu/read_bandwidth_level.h"

namespace switchyard::kernels::cpu {
namespace {

struct Avx2Line {
  void Add(const std::byte* line) {
    const auto* vectors = reinterpret_cast<const __m256i*>(line);
    low = _mm256_add_epi64(low, _mm256_load_si256(vectors));
    high = _mm256_add_epi64(high, _mm256_load_si256(vectors + 1));
  }
  uint64_t Sum() const {
    alignas(32) uint64_t lanes[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_add_epi64(low, high));
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
  }

  __m256i low = _mm256_setzero_si256();
  __m256i high = _mm256_setzero_si256();
};

}  // namespace

uint64_t SumWordsAvx2(const std::byte* data, int64_t bytes, int num_streams) {
  return SumLines<Avx2Line>(data, bytes, num_streams);
}

}  // namespace switchyard::kernels::cpu
