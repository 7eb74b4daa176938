#include "model/architectures.h"

#include "model/arch/qwen35moe.h"
#include "model/arch/qwen3moe.h"
#include "model/arch/qwen3next.h"
#include "model/arch/qwen4exp.h"

namespace switchyard::model {

absl::Span<const Architecture> Architectures() {
  static constexpr Architecture kArchitectures[] = {
      {"qwen3moe", LoadQwen3Moe},
      {"qwen3next", LoadQwen3Next},
      {"qwen35moe", LoadQwen35Moe},
      {"qwen4exp", LoadQwen4Exp},
  };
  return kArchitectures;
}

}  // namespace switchyard::model
