#include "model/arch/qwen35moe.h"

#include "model/architecture_models.h"

namespace switchyard::model {
namespace {

using switchyard::testing::GgufContents;
using ::testing::ElementsAre;

const std::string kFile = SWITCHYARD_TEST_DATA "/siblings/qwen35moe.gguf";

TEST(Qwen35MoeTest, DescribesTheTestModel) {
  const Model model = LoadModel(kFile);
  const ModelSpec& spec = model.spec;
  EXPECT_EQ(spec.architecture, "qwen35moe");
  EXPECT_EQ(spec.pre_tokenizer, "qwen35");
  EXPECT_EQ(spec.num_layers, 8);
  EXPECT_EQ(spec.num_residual_streams, 1);
  EXPECT_TRUE(spec.attention.has_output_gate);
  EXPECT_EQ(spec.attention.num_rotary_dims, 16);
  EXPECT_FLOAT_EQ(spec.attention.rope_base, 1e7f);
  ASSERT_TRUE(spec.delta_net.has_value());
  EXPECT_EQ(spec.delta_net->value_head_order, ValueHeadOrder::kTiled);
  EXPECT_EQ(spec.delta_net->output_gate, GateFunction::kSilu);
  EXPECT_EQ(spec.moe.num_experts, 8);
  EXPECT_EQ(spec.moe.shared_expert_hidden_size, 16);
  ASSERT_EQ(spec.layers.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    const bool is_attention = i % 4 == 3;
    EXPECT_EQ(spec.layers[i].kind, is_attention ? LayerKind::kAttention : LayerKind::kDeltaNet);
    EXPECT_EQ(spec.layers[i].delta_net.beta != nullptr, !is_attention);
    EXPECT_EQ(spec.layers[i].delta_net.beta_alpha, nullptr);
  }
  EXPECT_EQ(spec.num_mtp_layers, 1);
  EXPECT_EQ(spec.mtp_tensors.size(), 20u);
}

// One strip for each of a key head's value heads: two units of 16 columns.
TEST(Qwen35MoeTest, CutsDeltaNetOutputByKeyHeadInStrips) {
  const ColumnShards shards = LoadModel(kFile).spec.layers[0].output_shards;
  EXPECT_EQ(shards.num_strips, 3);
  EXPECT_EQ(shards.strip_columns, 32);
  EXPECT_THAT(shards.border, ElementsAre(0, 0, 16, 16, 32));
}

TEST(Qwen35MoeTest, TakesListOfRecurrentLayers) {
  GgufContents contents = GgufContents::FromFile(kFile);
  contents.SetArray("qwen35moe.attention.recurrent_layers",
                    std::vector<bool>{true, true, true, false, true, true, true, false, false});
  contents.Set("qwen35moe.full_attention_interval", uint32_t{2});  // not used then
  const absl::StatusOr<ModelSpec> spec = LoadContents(contents);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->layers[1].kind, LayerKind::kDeltaNet);
}

TEST(Qwen35MoeTest, RefusesSectionsThatLeavePairsUncovered) {
  GgufContents contents = GgufContents::FromFile(kFile);
  contents.SetArray("qwen35moe.rope.dimension_sections", std::vector<int32_t>{3, 3, 1, 0});
  ExpectRefused(contents, {"uncovered", "qwen35moe.rope.dimension_sections"});
}

// Grouped rows would mean other heads here.
TEST(Qwen35MoeTest, RefusesFusedProjectionsOfGroupedHeads) {
  GgufContents contents = GgufContents::FromFile(kFile);
  GgufContents::Tensor& fused = contents.tensor("blk.0.ssm_beta.weight");
  fused.name = "blk.0.ssm_ba.weight";
  fused.dims[1] *= 2;
  fused.bytes *= 2;
  contents.RemoveTensor("blk.0.ssm_alpha.weight");
  ExpectRefused(contents, {"tensor is missing: blk.0.ssm_beta.weight"});
}

TEST(Qwen35MoeTest, NamesWhatIsMissing) {
  ExpectAllNeeded(GgufContents::FromFile(kFile),
                  {"qwen35moe.rope.dimension_sections", "qwen35moe.ssm.state_size",
                   "qwen35moe.ssm.time_step_rank", "qwen35moe.expert_used_count"},
                  {"output_norm.weight", "blk.0.ssm_beta.weight", "blk.1.ssm_alpha.weight",
                   "blk.2.ssm_a", "blk.3.post_attention_norm.weight", "blk.3.attn_output.weight",
                   "blk.6.ffn_down_shexp.weight"});
}

}  // namespace
}  // namespace switchyard::model
