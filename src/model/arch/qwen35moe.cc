#include "model/arch/qwen35moe.h"

#include "base/status_macros.h"
#include "model/arch/qwen3_blocks.h"

namespace switchyard::model {

absl::StatusOr<ModelSpec> LoadQwen35Moe(const GgufFile& file) {
  ArchReader reader(file, "qwen35moe.");
  ModelSpec spec;
  spec.architecture = "qwen35moe";
  Blocks blocks = ReadTrunkSizes(reader, spec);
  spec.attention.has_output_gate = true;
  ReadAttentionSizes(reader, spec.attention);
  CheckRopeSections(reader, spec.attention);
  spec.delta_net = ReadDeltaNetSizes(reader);
  spec.delta_net->value_head_order = ValueHeadOrder::kTiled;
  spec.delta_net->output_gate = GateFunction::kSilu;
  ReadLayerKinds(reader, spec, blocks);
  ReadExpertSizes(reader, spec, blocks);
  ReadSharedExpertSize(reader, spec.moe);
  ReadPreNormModel(reader, blocks, {.moe_norm = "post_attention_norm"}, spec);
  SWITCHYARD_RETURN_IF_ERROR(FinishModel(reader, spec));
  return spec;
}

}  // namespace switchyard::model
