// Built for AVX-512 (roofline.cmake).
#include <immintrin.h>
#include <numeric>

#include "kernels/cpu/read_bandwidth_level.h"

namespace switchyard::kernels::cpu {
namespace {

struct Avx512Line {
  void Add(const std::byte* line) { sum = _mm512_add_epi64(sum, _mm512_load_si512(line)); }
  // Not by the reduction of the header: it adds signed words, which may overflow.
  uint64_t Sum() const {
    alignas(64) uint64_t words[8];
    _mm512_store_si512(words, sum);
    return std::accumulate(words, words + 8, uint64_t{0});
  }

  __m512i sum = _mm512_setzero_si512();
};

}  // namespace

uint64_t SumWordsAvx512(const std::byte* data, int64_t bytes, int num_streams) {
  return SumLines<Avx512Line>(data, bytes, num_streams);
}

}  // namespace switchyard::kernels::cpu
