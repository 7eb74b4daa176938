// The table of one level: included at the end of stage_kernels_*.cc. Level code: see simd.h.
#pragma once

#include "kernels/cpu/attention_level.h"
#include "kernels/cpu/delta_rule_level.h"
#include "kernels/cpu/elementwise_level.h"
#include "kernels/cpu/stage_kernels.h"

namespace switchyard::kernels::cpu::SWITCHYARD_SIMD_NAMESPACE {

inline constexpr StageKernels kTable = {
    .name = SWITCHYARD_SIMD_AVX512 ? "avx512"
            : SWITCHYARD_SIMD_AVX2 ? "avx2"
                                   : "portable",
    .dot = Dot,
    .rms_norm = RmsNorm,
    .silu = SiluDivided,
    .silu_mul = SiluMul,
    .mul_sigmoid = MulSigmoid,
    .mul_silu = MulSilu,
    .add_scaled = AddScaled,
    .scale = Scale,
    .sum4 = SumFour,
    .gated_mean = GatedMean,
    .softmax_exp = SoftmaxExp,
    .rotate = Rotate,
    .conv_silu = ConvSilu,
    .store_kv = StoreKv,
    .delta_normalize = DeltaNormalize,
    .delta_step = DeltaStep,
    .delta_chunk = DeltaChunkHead,
    .attend = Attend,
    .merge_attended = MergeAttended,
    .finish_attended = FinishAttended,
    .score_blocks = ScoreBlocks,
};

}  // namespace switchyard::kernels::cpu::SWITCHYARD_SIMD_NAMESPACE
