// The model architectures that this engine knows.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "model/gguf_file.h"
#include "model/model_spec.h"

namespace switchyard::model {

struct Architecture {
  std::string_view name;  // as in `general.architecture`
  // Errors: as LoadModelSpec().
  absl::StatusOr<ModelSpec> (*load)(const GgufFile& file);
};

absl::Span<const Architecture> Architectures();

}  // namespace switchyard::model
