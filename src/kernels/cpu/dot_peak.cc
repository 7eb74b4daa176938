#include "kernels/cpu/dot_peak.h"

#include "base/check.h"
#include "kernels/cpu/dot_peak_level.h"

namespace switchyard::kernels::cpu {

DotPeakRun RunDotPeak(CpuLevel level, int64_t num_operations) {
  switch (level) {
    case CpuLevel::kScalar:
      return {0, true};
    case CpuLevel::kAvx2:
      return RunDotPeakAvx2(num_operations);
    case CpuLevel::kAvxVnni:
      return RunDotPeakAvxVnni(num_operations);
    case CpuLevel::kAvx512Vnni:
      return RunDotPeakAvx512(num_operations);
  }
  SWITCHYARD_CHECK(false);  // a level outside the enumerators is memory corruption
  return {};
}

}  // namespace switchyard::kernels::cpu
