#include "kernels/cpu/cpu_features.h"

#include <algorithm>
#include <cpuid.h>
#include <cstdint>
#include <iterator>

namespace switchyard::kernels::cpu {
namespace {

constexpr CpuLevel kLevels[] = {CpuLevel::kScalar, CpuLevel::kAvx2, CpuLevel::kAvxVnni,
                                CpuLevel::kAvx512Vnni};

// Register states that the operating system saves (XCR0).
uint64_t EnabledStates() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

bool AllBits(uint64_t value, uint64_t bits) { return (value & bits) == bits; }

}  // namespace

bool RunsCpuLevel(CpuLevel level) {
  if (level == CpuLevel::kScalar) return true;
  uint32_t eax, ebx, ecx, edx;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
  if (!AllBits(ecx, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) return false;
  const uint64_t states = EnabledStates();
  constexpr uint64_t kYmmStates = 0x06;  // SSE, AVX
  constexpr uint64_t kZmmStates = 0xe6;  // and opmask, upper halves of zmm0-15, zmm16-31
  if (!AllBits(states, kYmmStates)) return false;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if (!AllBits(ebx, bit_AVX2)) return false;
  if (level == CpuLevel::kAvx2) return true;
  if (level == CpuLevel::kAvx512Vnni) {
    return AllBits(states, kZmmStates) &&
           AllBits(ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) &&
           AllBits(ecx, bit_AVX512VBMI | bit_AVX512VNNI);
  }
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && AllBits(eax, bit_AVXVNNI);
}

CpuLevel DetectCpuLevel() {
  return *std::find_if(std::rbegin(kLevels), std::rend(kLevels), RunsCpuLevel);
}

std::string_view CpuLevelName(CpuLevel level) {
  switch (level) {
    case CpuLevel::kScalar:
      return "scalar";
    case CpuLevel::kAvx2:
      return "avx2";
    case CpuLevel::kAvxVnni:
      return "avxvnni";
    case CpuLevel::kAvx512Vnni:
      return "avx512vnni";
  }
  return "unknown";
}

std::optional<CpuLevel> CpuLevelFromName(std::string_view name) {
  for (const CpuLevel level : kLevels) {
    if (CpuLevelName(level) == name) return level;
  }
  return std::nullopt;
}

}  // namespace switchyard::kernels::cpu
