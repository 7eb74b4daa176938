#include "model/arch/qwen3next.h"

#include "base/status_macros.h"
#include "model/arch/qwen3_blocks.h"

namespace switchyard::model {

absl::StatusOr<ModelSpec> LoadQwen3Next(const GgufFile& file) {
  ArchReader reader(file, "qwen3next.");
  ModelSpec spec;
  spec.architecture = "qwen3next";
  Blocks blocks = ReadTrunkSizes(reader, spec);
  spec.attention.has_output_gate = true;
  ReadAttentionSizes(reader, spec.attention);
  spec.delta_net = ReadDeltaNetSizes(reader);
  spec.delta_net->value_head_order = ValueHeadOrder::kGrouped;
  spec.delta_net->output_gate = GateFunction::kSilu;
  ReadLayerKinds(reader, spec, blocks);
  ReadExpertSizes(reader, spec, blocks);
  ReadSharedExpertSize(reader, spec.moe);
  ReadPreNormModel(
      reader, blocks,
      {.moe_norm = "post_attention_norm", .delta_net_inputs = DeltaNetInputs::kGroupedByKeyHead},
      spec);
  SWITCHYARD_RETURN_IF_ERROR(FinishModel(reader, spec));
  return spec;
}

}  // namespace switchyard::model
