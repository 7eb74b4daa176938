// Instruction sets of the CPU kernels, and which of them this machine can run.
#pragma once

#include <optional>
#include <string_view>

namespace switchyard::kernels::cpu {

// From the slowest to the fastest. All levels give the same bits.
enum class CpuLevel {
  kScalar,      // plain C++; any x86-64
  kAvx2,        // AVX2, FMA, F16C
  kAvxVnni,     // and AVX-VNNI: products of bytes in vectors of 256 bits
  kAvx512Vnni,  // AVX-512 F, BW, DQ, VL, VBMI and VNNI
};

// Whether the processor and the operating system allow a level. A machine that runs a level need
// not run all before it: AVX-512 VNNI came before AVX-VNNI.
bool RunsCpuLevel(CpuLevel level);

// Returns the fastest level that the processor and the operating system allow. The second matters:
// a hypervisor may list a feature in CPUID whose registers the system does not save.
CpuLevel DetectCpuLevel();

// "scalar", "avx2", "avxvnni", "avx512vnni".
std::string_view CpuLevelName(CpuLevel level);
std::optional<CpuLevel> CpuLevelFromName(std::string_view name);

}  // namespace switchyard::kernels::cpu
