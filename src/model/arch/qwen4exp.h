// GGUF keys and tensor names of the architecture qwen4exp (Qwen3.8-Flash-Next).
#pragma once

#include "absl/status/statusor.h"

#include "model/gguf_file.h"
#include "model/model_spec.h"

namespace switchyard::model {

// Describes a qwen4exp model: four residual streams, gated delta net and gated attention with
// sparse selection, mixture of experts with a gated shared expert, an n-gram embedding.
//
// Errors: as LoadModelSpec().
absl::StatusOr<ModelSpec> LoadQwen4Exp(const GgufFile& file);

}  // namespace switchyard::model
