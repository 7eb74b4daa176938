// Instruction sets of the CPU kernels, and which of them this machine can run.
#pragma once

#include <optional>
#include <string_view>

namespace switchyard::kernels::cpu {

// Ordered: a machine that runs a level runs all before it. All levels give the same bits.
enum class CpuLevel {
  kScalar,      // plain C++; any x86-64
  kAvx2,        // AVX2, FMA, F16C
  kAvx512Vnni,  // AVX-512 F, BW, DQ, VL, VBMI and VNNI
};

// Returns the highest level that the processor and the operating system allow. The second matters:
// a hypervisor may list a feature in CPUID whose registers the system does not save.
CpuLevel DetectCpuLevel();

// "scalar", "avx2", "avx512vnni".
std::string_view CpuLevelName(CpuLevel level);
std::optional<CpuLevel> CpuLevelFromName(std::string_view name);

}  // namespace switchyard::kernels::cpu
