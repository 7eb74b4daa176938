// Products of bytes at the speed of the arithmetic units: nothing but registers, so that kernels
// can be compared with what the cores could do at most.
#pragma once

#include <cstdint>

#include "kernels/cpu/cpu_features.h"

namespace switchyard::kernels::cpu {

struct DotPeakRun {
  int64_t num_operations = 0;  // a multiplication and an addition are two
  bool is_correct = false;     // whether the sums are what they must be
};

// Runs about `num_operations` products of unsigned with signed bytes, added up in 32 bits, in the
// instructions of the level: vpdpbusd, or on AVX2 vpmaddubsw, vpmaddwd and vpaddd. The scalar level
// has none; its run has no operations.
//
// Threads:  any.
// REQUIRES: this machine runs `level`.
DotPeakRun RunDotPeak(CpuLevel level, int64_t num_operations);

}  // namespace switchyard::kernels::cpu
