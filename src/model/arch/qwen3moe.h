// GGUF keys and tensor names of the architecture qwen3moe (Qwen3-30B-A3B, Qwen3-235B-A22B).
#pragma once

#include "absl/status/statusor.h"

#include "model/gguf_file.h"
#include "model/model_spec.h"

namespace switchyard::model {

// Describes a qwen3moe model: attention in every layer, without output gate; mixture of experts
// without a shared one.
//
// Errors: as LoadModelSpec().
absl::StatusOr<ModelSpec> LoadQwen3Moe(const GgufFile& file);

}  // namespace switchyard::model
