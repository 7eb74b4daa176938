#include "model/arch/qwen3moe.h"

#include "base/status_macros.h"
#include "model/arch/qwen3_blocks.h"

namespace switchyard::model {

absl::StatusOr<ModelSpec> LoadQwen3Moe(const GgufFile& file) {
  ArchReader reader(file, "qwen3moe.");
  ModelSpec spec;
  spec.architecture = "qwen3moe";
  Blocks blocks = ReadTrunkSizes(reader, spec);
  ReadAttentionSizes(reader, spec.attention);
  ReadExpertSizes(reader, spec, blocks);
  ReadPreNormModel(reader, blocks, {.moe_norm = "ffn_norm"}, spec);
  SWITCHYARD_RETURN_IF_ERROR(FinishModel(reader, spec));
  return spec;
}

}  // namespace switchyard::model
