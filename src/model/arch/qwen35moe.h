// GGUF keys and tensor names of the architecture qwen35moe (Qwen3.5-35B-A3B, Qwen3.5-397B-A17B).
#pragma once

#include "absl/status/statusor.h"

#include "model/gguf_file.h"
#include "model/model_spec.h"

namespace switchyard::model {

// Describes a qwen35moe model: gated delta net, whose value heads are in tiled order, and gated
// attention; mixture of experts with a gated shared expert.
//
// Errors: as LoadModelSpec().
absl::StatusOr<ModelSpec> LoadQwen35Moe(const GgufFile& file);

}  // namespace switchyard::model
