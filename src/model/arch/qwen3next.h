// GGUF keys and tensor names of the architecture qwen3next (Qwen3-Next-80B-A3B).
#pragma once

#include "absl/status/statusor.h"

#include "model/gguf_file.h"
#include "model/model_spec.h"

namespace switchyard::model {

// Describes a qwen3next model: gated delta net, whose value heads are grouped by key head, and
// gated attention; mixture of experts with a gated shared expert.
//
// Errors: as LoadModelSpec().
absl::StatusOr<ModelSpec> LoadQwen3Next(const GgufFile& file);

}  // namespace switchyard::model
