// Built with AVX-512; called only where the CPU has it.
#include "kernels/cpu/stage_kernels_level.h"

static_assert(SWITCHYARD_SIMD_AVX512, "this file needs AVX-512 F, BW, DQ and VL");

namespace switchyard::kernels::cpu {

const StageKernels& Avx512StageKernels() { return SWITCHYARD_SIMD_NAMESPACE::kTable; }

}  // namespace switchyard::kernels::cpu
