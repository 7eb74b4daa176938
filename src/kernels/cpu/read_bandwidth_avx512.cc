// Built for AVX-512 (roofline.cmake).
#include <immintrin.h>

#include "kernels/cpu/read_bandwidth_level.h"

namespace switchyard::kernels::cpu {
namespace {

struct Avx512Line {
  void Add(const std::byte* line) { sum = _mm512_add_epi64(sum, _mm512_load_si512(line)); }
  uint64_t Sum() const { return static_cast<uint64_t>(_mm512_reduce_add_epi64(sum)); }

  __m512i sum = _mm512_setzero_si512();
};

}  // namespace

uint64_t SumWordsAvx512(const std::byte* data, int64_t bytes, int num_streams) {
  return SumLines<Avx512Line>(data, bytes, num_streams);
}

}  // namespace switchyard::kernels::cpu
