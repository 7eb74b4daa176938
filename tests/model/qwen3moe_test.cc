#include "model/arch/qwen3moe.h"

#include "model/architecture_models.h"

namespace switchyard::model {
namespace {

using switchyard::testing::GgufContents;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kFile = SWITCHYARD_TEST_DATA "/siblings/qwen3moe.gguf";

TEST(Qwen3MoeTest, DescribesTheTestModel) {
  const Model model = LoadModel(kFile);
  const ModelSpec& spec = model.spec;
  EXPECT_EQ(spec.architecture, "qwen3moe");
  EXPECT_EQ(spec.pre_tokenizer, "qwen2");
  EXPECT_EQ(spec.num_layers, 4);
  EXPECT_EQ(spec.hidden_size, 64);
  EXPECT_EQ(spec.vocab_size, 512);
  EXPECT_EQ(spec.num_residual_streams, 1);
  EXPECT_EQ(spec.attention.num_heads, 4);
  EXPECT_EQ(spec.attention.num_kv_heads, 2);
  EXPECT_EQ(spec.attention.head_dim, 32);
  EXPECT_FALSE(spec.attention.has_output_gate);
  EXPECT_FALSE(spec.has_sparse_attention());
  EXPECT_FALSE(spec.delta_net.has_value());
  EXPECT_FALSE(spec.ple.has_value());
  EXPECT_EQ(spec.moe.num_experts, 16);
  EXPECT_EQ(spec.moe.top_k, 4);
  EXPECT_EQ(spec.moe.max_expert_hidden_size, 16);
  EXPECT_EQ(spec.moe.shared_expert_hidden_size, 0);
  EXPECT_NE(spec.final_mixer.norm, nullptr);
  ASSERT_EQ(spec.layers.size(), 4u);
  for (const LayerSpec& layer : spec.layers) {
    EXPECT_EQ(layer.kind, LayerKind::kAttention);
    EXPECT_NE(layer.mixer.norm, nullptr);
    EXPECT_EQ(layer.mixer.down, nullptr);
    EXPECT_NE(layer.moe_mixer.norm, nullptr);
    EXPECT_EQ(layer.moe.shared_down, nullptr);
    EXPECT_THAT(layer.output_shards.border, ElementsAre(0, 32, 64, 96, 128));
    EXPECT_THAT(layer.down_shards.border, ElementsAre(0, 4, 8, 12, 16));
  }
}

// Published files say nothing about the number of rotated dimensions.
TEST(Qwen3MoeTest, RotatesWholeHeadsUnlessTheFileSaysLess) {
  GgufContents contents = GgufContents::FromFile(kFile);
  contents.Remove("qwen3moe.rope.dimension_count");
  EXPECT_EQ(LoadContents(contents)->attention.num_rotary_dims, 32);
  contents.Set("qwen3moe.rope.dimension_count", uint32_t{16});
  EXPECT_EQ(LoadContents(contents)->attention.num_rotary_dims, 16);
  contents.Set("qwen3moe.rope.dimension_count", uint32_t{15});
  ExpectRefused(contents, {"odd or more", "qwen3moe.rope.dimension_count"});
}

TEST(Qwen3MoeTest, TiesOutputToEmbeddingWhenItIsAbsent) {
  GgufContents contents = GgufContents::FromFile(kFile);
  contents.RemoveTensor("output.weight");
  EXPECT_TRUE(LoadContents(contents)->is_output_tied());
}

TEST(Qwen3MoeTest, NamesWhatIsMissing) {
  ExpectAllNeeded(
      GgufContents::FromFile(kFile),
      {"qwen3moe.block_count", "qwen3moe.attention.key_length", "qwen3moe.rope.freq_base",
       "qwen3moe.expert_count", "qwen3moe.expert_feed_forward_length"},
      {"token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.1.attn_q.weight",
       "blk.2.ffn_norm.weight", "blk.3.ffn_gate_inp.weight", "blk.3.ffn_down_exps.weight"});
}

TEST(Qwen3MoeTest, RefusesPartsThatItDoesNotHave) {
  GgufContents gated = GgufContents::FromFile(kFile);
  GgufContents::Tensor& query = gated.tensor("blk.1.attn_q.weight");
  query.dims[1] *= 2;
  query.bytes *= 2;
  ExpectRefused(gated, {"shape disagrees", "blk.1.attn_q.weight", "wanted: {64, 128}"});
  GgufContents shared = GgufContents::FromFile(kFile);
  shared.tensors.push_back(shared.tensor("blk.0.ffn_norm.weight"));
  shared.tensors.back().name = "blk.0.ffn_gate_inp_shexp.weight";
  ExpectRefused(shared, {"not part of this architecture", "blk.0.ffn_gate_inp_shexp.weight"});
  GgufContents scaled = GgufContents::FromFile(kFile);
  scaled.SetString("qwen3moe.rope.scaling.type", "yarn");
  ExpectRefused(scaled, {"rope scaling is not supported", "offset: "});
}

}  // namespace
}  // namespace switchyard::model
