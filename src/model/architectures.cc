#include "model/architectures.h"

#include "model/arch/qwen4exp.h"

namespace switchyard::model {

absl::Span<const Architecture> Architectures() {
  static constexpr Architecture kArchitectures[] = {
      {"qwen4exp", LoadQwen4Exp},
  };
  return kArchitectures;
}

}  // namespace switchyard::model
