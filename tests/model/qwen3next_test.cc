#include "model/arch/qwen3next.h"

#include "model/architecture_models.h"

namespace switchyard::model {
namespace {

using switchyard::testing::GgufContents;
using ::testing::ElementsAre;

const std::string kFile = SWITCHYARD_TEST_DATA "/siblings/qwen3next.gguf";

TEST(Qwen3NextTest, DescribesTheTestModel) {
  const Model model = LoadModel(kFile);
  const ModelSpec& spec = model.spec;
  EXPECT_EQ(spec.architecture, "qwen3next");
  EXPECT_EQ(spec.pre_tokenizer, "qwen2");
  EXPECT_EQ(spec.num_layers, 8);
  EXPECT_EQ(spec.num_residual_streams, 1);
  EXPECT_TRUE(spec.attention.has_output_gate);
  EXPECT_EQ(spec.attention.num_rotary_dims, 16);
  EXPECT_FALSE(spec.has_sparse_attention());
  ASSERT_TRUE(spec.delta_net.has_value());
  EXPECT_EQ(spec.delta_net->num_key_heads, 2);
  EXPECT_EQ(spec.delta_net->num_value_heads, 6);
  EXPECT_EQ(spec.delta_net->value_head_order, ValueHeadOrder::kGrouped);
  EXPECT_EQ(spec.delta_net->output_gate, GateFunction::kSilu);
  EXPECT_EQ(spec.moe.shared_expert_hidden_size, 16);
  ASSERT_EQ(spec.layers.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    const bool is_attention = i % 4 == 3;
    EXPECT_EQ(spec.layers[i].kind, is_attention ? LayerKind::kAttention : LayerKind::kDeltaNet);
    EXPECT_EQ(spec.layers[i].delta_net.beta_alpha != nullptr, !is_attention);
    EXPECT_EQ(spec.layers[i].delta_net.beta, nullptr);
  }
}

// A key head's value heads are adjacent: two units of 48 columns.
TEST(Qwen3NextTest, CutsDeltaNetOutputByKeyHeadInOneStrip) {
  const ColumnShards shards = LoadModel(kFile).spec.layers[0].output_shards;
  EXPECT_EQ(shards.num_strips, 1);
  EXPECT_THAT(shards.border, ElementsAre(0, 0, 48, 48, 96));
}

TEST(Qwen3NextTest, ListsDraftTensorsApart) {
  const Model model = LoadModel(kFile);
  EXPECT_EQ(model.spec.num_mtp_layers, 1);
  EXPECT_EQ(model.spec.mtp_tensors.size(), 20u);
  for (const TensorRef tensor : model.spec.mtp_tensors) {
    EXPECT_EQ(tensor->name.find("blk.8."), 0u) << tensor->name;
  }
  GgufContents without = GgufContents::FromFile(kFile);
  without.Set("qwen3next.block_count", uint32_t{8});
  without.Remove("qwen3next.nextn_predict_layers");
  ExpectRefused(without, {"not part of this architecture", "blk.8."});
  std::erase_if(without.tensors,
                [](const GgufContents::Tensor& tensor) { return tensor.name.find("blk.8.") == 0; });
  EXPECT_TRUE(LoadContents(without).ok());
}

TEST(Qwen3NextTest, TakesFusedInputProjection) {
  GgufContents contents = GgufContents::FromFile(kFile);
  GgufContents::Tensor& fused = contents.tensor("blk.0.attn_qkv.weight");
  fused.name = "blk.0.ssm_in.weight";
  fused.dims[1] = 256;  // 2 key heads of (16 + 16 + 48 + 48) rows
  fused.bytes = 64 * 256 * 4;
  contents.RemoveTensor("blk.0.attn_gate.weight");
  const absl::StatusOr<ModelSpec> spec = LoadContents(contents);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_NE(spec->layers[0].delta_net.qkv_gate, nullptr);
  EXPECT_EQ(spec->layers[0].delta_net.qkv, nullptr);
  contents.tensor("blk.0.ssm_in.weight").dims[1] = 255;
  ExpectRefused(contents, {"shape disagrees", "blk.0.ssm_in.weight"});
}

TEST(Qwen3NextTest, NamesWhatIsMissing) {
  ExpectAllNeeded(
      GgufContents::FromFile(kFile),
      {"qwen3next.ssm.conv_kernel", "qwen3next.ssm.group_count", "qwen3next.ssm.inner_size",
       "qwen3next.expert_shared_feed_forward_length", "qwen3next.attention.layer_norm_rms_epsilon"},
      {"output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ssm_ba.weight",
       "blk.1.attn_qkv.weight", "blk.1.attn_gate.weight", "blk.2.post_attention_norm.weight",
       "blk.3.attn_k_norm.weight", "blk.4.ssm_dt.bias", "blk.5.ffn_gate_inp_shexp.weight"});
}

}  // namespace
}  // namespace switchyard::model
