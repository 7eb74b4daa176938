// All block formats, and a switch over them.
#pragma once

#include "base/check.h"
#include "kernels/quant/iq1_m.h"
#include "kernels/quant/iq1_s.h"
#include "kernels/quant/iq2_s.h"
#include "kernels/quant/iq2_xs.h"
#include "kernels/quant/iq2_xxs.h"
#include "kernels/quant/iq3_s.h"
#include "kernels/quant/iq3_xxs.h"
#include "kernels/quant/iq4_nl.h"
#include "kernels/quant/iq4_xs.h"
#include "kernels/quant/q2_k.h"
#include "kernels/quant/q3_k.h"
#include "kernels/quant/q4_0.h"
#include "kernels/quant/q4_1.h"
#include "kernels/quant/q4_k.h"
#include "kernels/quant/q5_0.h"
#include "kernels/quant/q5_1.h"
#include "kernels/quant/q5_k.h"
#include "kernels/quant/q6_k.h"
#include "kernels/quant/q8_0.h"

namespace switchyard::kernels {

// Calls visit.operator()<Format>() with the format of `dtype`, one of the structs of block.h.
// REQUIRES: dtype is a block format, not F32, F16 or BF16.
template <typename Visitor>
auto VisitBlockFormat(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DType::kQ4_0:
      return visit.template operator()<Q4_0>();
    case DType::kQ4_1:
      return visit.template operator()<Q4_1>();
    case DType::kQ5_0:
      return visit.template operator()<Q5_0>();
    case DType::kQ5_1:
      return visit.template operator()<Q5_1>();
    case DType::kQ8_0:
      return visit.template operator()<Q8_0>();
    case DType::kQ2_K:
      return visit.template operator()<Q2K>();
    case DType::kQ3_K:
      return visit.template operator()<Q3K>();
    case DType::kQ4_K:
      return visit.template operator()<Q4K>();
    case DType::kQ5_K:
      return visit.template operator()<Q5K>();
    case DType::kQ6_K:
      return visit.template operator()<Q6K>();
    case DType::kIQ2_XXS:
      return visit.template operator()<Iq2Xxs>();
    case DType::kIQ2_XS:
      return visit.template operator()<Iq2Xs>();
    case DType::kIQ3_XXS:
      return visit.template operator()<Iq3Xxs>();
    case DType::kIQ1_S:
      return visit.template operator()<Iq1S>();
    case DType::kIQ4_NL:
      return visit.template operator()<Iq4Nl>();
    case DType::kIQ3_S:
      return visit.template operator()<Iq3S>();
    case DType::kIQ2_S:
      return visit.template operator()<Iq2S>();
    case DType::kIQ4_XS:
      return visit.template operator()<Iq4Xs>();
    case DType::kIQ1_M:
      return visit.template operator()<Iq1M>();
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  SWITCHYARD_CHECK(false);  // the caller handles the float types itself
  return visit.template operator()<Q8_0>();
}

}  // namespace switchyard::kernels
