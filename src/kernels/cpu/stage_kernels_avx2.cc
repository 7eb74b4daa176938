// Built with -mavx2 -mfma -mf16c; called only where the CPU has all three.
#include "kernels/cpu/stage_kernels_level.h"

static_assert(SWITCHYARD_SIMD_AVX2, "this file needs -mavx2 -mfma -mf16c");

namespace switchyard::kernels::cpu {

const StageKernels& Avx2StageKernels() { return SWITCHYARD_SIMD_NAMESPACE::kTable; }

}  // namespace switchyard::kernels::cpu
