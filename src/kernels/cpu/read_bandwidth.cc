#include "kernels/cpu/read_bandwidth.h"

#include <cstring>

#include "base/check.h"
#include "kernels/cpu/read_bandwidth_level.h"

namespace switchyard::kernels::cpu {
namespace {

struct PlainLine {
  void Add(const std::byte* line) {
    uint64_t words[8];
    std::memcpy(words, line, sizeof(words));
    for (int i = 0; i < 8; ++i) lanes[i] += words[i];
  }
  uint64_t Sum() const {
    uint64_t sum = 0;
    for (const uint64_t lane : lanes) sum += lane;
    return sum;
  }

  uint64_t lanes[8] = {};
};

SumWordsFunction FunctionOf(CpuLevel level) {
  switch (level) {
    case CpuLevel::kScalar:
      return SumLines<PlainLine>;
    case CpuLevel::kAvx2:
    case CpuLevel::kAvxVnni:
      return SumWordsAvx2;
    case CpuLevel::kAvx512Vnni:
      return SumWordsAvx512;
  }
  SWITCHYARD_CHECK(false);  // a level outside the enumerators is memory corruption
  return nullptr;
}

}  // namespace

uint64_t SumWords(CpuLevel level, const std::byte* data, int64_t bytes, int num_streams) {
  SWITCHYARD_DCHECK(num_streams == 1 || num_streams == 2 || num_streams == 4 || num_streams == 8);
  SWITCHYARD_DCHECK(bytes >= 0 && bytes % (kReadLineBytes * num_streams) == 0);
  SWITCHYARD_DCHECK(reinterpret_cast<uintptr_t>(data) % kReadLineBytes == 0);
  return FunctionOf(level)(data, bytes, num_streams);
}

}  // namespace switchyard::kernels::cpu
