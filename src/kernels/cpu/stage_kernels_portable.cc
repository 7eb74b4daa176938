// Built with the flags of ordinary files.
#include "kernels/cpu/stage_kernels_level.h"

namespace switchyard::kernels::cpu {

const StageKernels& PortableStageKernels() { return SWITCHYARD_SIMD_NAMESPACE::kTable; }

}  // namespace switchyard::kernels::cpu
