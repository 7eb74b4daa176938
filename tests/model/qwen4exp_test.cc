#include "model/arch/qwen4exp.h"

#include <cctype>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "model/architecture_models.h"

namespace switchyard::model {
namespace {

using switchyard::testing::GgufContents;
using ::testing::ElementsAre;

const std::string kData = SWITCHYARD_TEST_DATA "/qwen4exp/";
const std::string kDemo = SWITCHYARD_SOURCE_DIR "/deploy/demo/switchyard-demo.gguf";

TEST(Qwen4ExpTest, DescribesTheDemoModel) {
  const Model model = LoadModel(kDemo);
  const ModelSpec& spec = model.spec;
  EXPECT_EQ(spec.architecture, "qwen4exp");
  EXPECT_EQ(spec.pre_tokenizer, "qwen35");
  EXPECT_EQ(spec.num_layers, 8);
  EXPECT_EQ(spec.hidden_size, 256);
  EXPECT_EQ(spec.vocab_size, 2048);
  EXPECT_EQ(spec.context_length, 4096);
  EXPECT_FLOAT_EQ(spec.rms_epsilon, 1e-6f);
  EXPECT_EQ(spec.num_residual_streams, 4);
  EXPECT_EQ(spec.hc_low_rank, 32);
  EXPECT_EQ(spec.attention.num_heads, 4);
  EXPECT_EQ(spec.attention.num_kv_heads, 2);
  EXPECT_EQ(spec.attention.head_dim, 64);
  EXPECT_EQ(spec.attention.num_rotary_dims, 16);
  EXPECT_TRUE(spec.attention.has_output_gate);
  EXPECT_EQ(spec.attention.num_index_heads, 4);
  EXPECT_EQ(spec.attention.index_head_dim, 32);
  EXPECT_EQ(spec.attention.budget_tokens, 64);
  EXPECT_TRUE(spec.has_sparse_attention());
  ASSERT_TRUE(spec.delta_net.has_value());
  EXPECT_EQ(spec.delta_net->num_key_heads, 2);
  EXPECT_EQ(spec.delta_net->num_value_heads, 6);
  EXPECT_EQ(spec.delta_net->head_dim, 32);
  EXPECT_EQ(spec.delta_net->conv_kernel, 4);
  EXPECT_EQ(spec.delta_net->value_head_order, ValueHeadOrder::kTiled);
  EXPECT_EQ(spec.delta_net->output_gate, GateFunction::kSigmoid);
  EXPECT_EQ(spec.moe.num_experts, 32);
  EXPECT_EQ(spec.moe.top_k, 4);
  EXPECT_EQ(spec.moe.max_expert_hidden_size, 32);
  EXPECT_EQ(spec.moe.shared_expert_hidden_size, 64);
  ASSERT_TRUE(spec.ple.has_value());
  EXPECT_EQ(spec.ple->layer, 1);
  EXPECT_EQ(spec.ple->num_heads(), 8);
  EXPECT_EQ(spec.ple->row_width, 32);
  EXPECT_EQ(spec.ple->head_offsets.size(), 8u);
  EXPECT_EQ(spec.ple->head_vocab_sizes[0], 8209u);
  EXPECT_EQ(spec.num_mtp_layers, 1);
  EXPECT_FALSE(spec.mtp_tensors.empty());
  ASSERT_EQ(spec.layers.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    const LayerSpec& layer = spec.layers[i];
    const bool is_attention = i == 3 || i == 7;
    EXPECT_EQ(layer.kind, is_attention ? LayerKind::kAttention : LayerKind::kDeltaNet);
    EXPECT_EQ(layer.compress_ratio, is_attention ? 4 : 0);
    EXPECT_EQ(layer.attention.query != nullptr, is_attention);
    EXPECT_EQ(layer.attention.index_query != nullptr, is_attention);
    EXPECT_EQ(layer.delta_net.qkv != nullptr, !is_attention);
    EXPECT_EQ(layer.expert_hidden_size, 32);
    // Formats are those of the tensors and differ between layers.
    EXPECT_EQ(layer.moe.gate->dtype, i == 4 || i == 5 ? DType::kIQ3_S : DType::kIQ4_XS);
    EXPECT_EQ(layer.moe.down->dtype, i == 0 ? DType::kQ8_0 : DType::kIQ4_NL);
  }
}

TEST(Qwen4ExpTest, DescribesEveryTestModel) {
  for (const char* name : {"base", "mixed", "shards", "split-00003-of-00004", "qsa", "qsa_ties",
                           "qsa_2048", "e512", "mtp"}) {
    const Model model = LoadModel(kData + name + ".gguf");
    EXPECT_GT(model.spec.num_layers, 0) << name;
    EXPECT_FALSE(model.spec.is_output_tied()) << name;
    EXPECT_EQ(model.spec.layers.size(), static_cast<size_t>(model.spec.num_layers)) << name;
  }
}

TEST(Qwen4ExpTest, HonoursIntervalAndPleLayer) {
  const Model model = LoadModel(kData + "e512.gguf");
  EXPECT_EQ(model.spec.layers[0].kind, LayerKind::kDeltaNet);
  EXPECT_EQ(model.spec.layers[1].kind, LayerKind::kAttention);
  EXPECT_EQ(model.spec.ple->layer, 0);
  EXPECT_EQ(model.spec.moe.num_experts, 512);
  EXPECT_EQ(model.spec.moe.top_k, 10);
}

TEST(Qwen4ExpTest, FindsTensorsInTheirShard) {
  const Model model = LoadModel(kData + "split-00001-of-00004.gguf");
  for (const LayerSpec& layer : model.spec.layers) EXPECT_GT(layer.moe.down->shard, 0);
}

// ---- virtual shards ---------------------------------------------------------------------------

TEST(Qwen4ExpTest, CutsWholeUnitsIntoFourShards) {
  const Model model = LoadModel(kData + "shards.gguf");
  const LayerSpec& linear = model.spec.layers[0];
  // 128 columns of IQ4_NL: four blocks of 32.
  EXPECT_THAT(linear.down_shards.border, ElementsAre(0, 32, 64, 96, 128));
  EXPECT_THAT(linear.shared_down_shards.border, ElementsAre(0, 32, 64, 96, 128));
  // Eight key heads of 32 values are one block of Q8_0 each; their three value heads lie in three
  // strips of 256 columns.
  EXPECT_EQ(linear.output_shards.num_strips, 3);
  EXPECT_EQ(linear.output_shards.strip_columns, 256);
  EXPECT_THAT(linear.output_shards.border, ElementsAre(0, 64, 128, 192, 256));
  // Eight query heads of 32.
  const LayerSpec& attention = model.spec.layers[3];
  EXPECT_EQ(attention.output_shards.num_strips, 1);
  EXPECT_THAT(attention.output_shards.border, ElementsAre(0, 64, 128, 192, 256));
}

TEST(Qwen4ExpTest, LeavesShardsEmptyWhereUnitsAreFew) {
  // Expert width 32 is one block: the last shard has it. Two key heads, four query heads.
  const Model demo = LoadModel(kDemo);
  EXPECT_THAT(demo.spec.layers[1].down_shards.border, ElementsAre(0, 0, 0, 0, 32));
  EXPECT_THAT(demo.spec.layers[1].output_shards.border, ElementsAre(0, 0, 32, 32, 64));
  EXPECT_EQ(demo.spec.layers[1].output_shards.num_strips, 3);
  EXPECT_THAT(demo.spec.layers[3].output_shards.border, ElementsAre(0, 64, 128, 192, 256));
  // F32: a unit is one column.
  const Model base = LoadModel(kData + "base.gguf");
  EXPECT_THAT(base.spec.layers[0].down_shards.border, ElementsAre(0, 4, 8, 12, 16));
}

// ---- variants of a valid file -----------------------------------------------------------------

// The smallest test model: 4 layers (attention in the last), hidden size 32, 8 experts.
GgufContents Small() { return GgufContents::FromFile(kData + "qsa_2048.gguf"); }

TEST(Qwen4ExpTest, TiesOutputToEmbeddingWhenItIsAbsent) {
  GgufContents contents = Small();
  contents.RemoveTensor("output.weight");
  const absl::StatusOr<ModelSpec> spec = LoadContents(contents);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(spec->is_output_tied());
}

TEST(Qwen4ExpTest, TakesFusedGateAndUp) {
  GgufContents contents = Small();
  for (int i = 0; i < 4; ++i) {
    contents.RemoveTensor(fmt::format("blk.{}.ffn_up_exps.weight", i));
    GgufContents::Tensor& gate = contents.tensor(fmt::format("blk.{}.ffn_gate_exps.weight", i));
    gate.name = fmt::format("blk.{}.ffn_gate_up_exps.weight", i);
    gate.dims[1] *= 2;
    gate.bytes *= 2;
  }
  const absl::StatusOr<ModelSpec> spec = LoadContents(contents);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_NE(spec->layers[0].moe.gate_up, nullptr);
  EXPECT_EQ(spec->layers[0].moe.gate, nullptr);
}

TEST(Qwen4ExpTest, TakesExpertWidthPerLayer) {
  GgufContents contents = Small();
  contents.SetArray("qwen4exp.expert_feed_forward_length", std::vector<uint32_t>{16, 16, 24, 16});
  for (const char* name : {"gate", "up", "down"}) {
    GgufContents::Tensor& tensor = contents.tensor(fmt::format("blk.2.ffn_{}_exps.weight", name));
    tensor.dims[name[0] == 'd' ? 0 : 1] = 24;
    tensor.bytes = tensor.bytes / 16 * 24;
  }
  const absl::StatusOr<ModelSpec> spec = LoadContents(contents);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->layers[2].expert_hidden_size, 24);
  EXPECT_EQ(spec->layers[3].expert_hidden_size, 16);
  EXPECT_EQ(spec->moe.max_expert_hidden_size, 24);
}

TEST(Qwen4ExpTest, TakesListOfRecurrentLayers) {
  GgufContents contents = Small();
  contents.SetArray("qwen4exp.attention.recurrent_layers", std::vector<uint8_t>{1, 1, 1, 0});
  contents.keys.back().value[0] = 7;                              // elements of type bool
  contents.Set("qwen4exp.full_attention_interval", uint32_t{2});  // not used then
  const absl::StatusOr<ModelSpec> spec = LoadContents(contents);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->layers[1].kind, LayerKind::kDeltaNet);
  EXPECT_EQ(spec->layers[3].kind, LayerKind::kAttention);
}

TEST(Qwen4ExpTest, DefaultsToEveryFourthLayer) {
  GgufContents contents = Small();
  contents.Remove("qwen4exp.full_attention_interval");
  const absl::StatusOr<ModelSpec> spec = LoadContents(contents);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->layers[3].kind, LayerKind::kAttention);
}

TEST(Qwen4ExpTest, DescribesModelWithoutNgramEmbedding) {
  GgufContents contents = Small();
  contents.Remove("qwen4exp.ple.layers");
  contents.RemoveTensor("per_layer_token_embd.weight");
  std::erase_if(contents.tensors, [](const GgufContents::Tensor& tensor) {
    return tensor.name.find(".ple_") != std::string::npos;
  });
  const absl::StatusOr<ModelSpec> spec = LoadContents(contents);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_FALSE(spec->ple.has_value());
}

TEST(Qwen4ExpTest, TakesDenseAttentionWithAndWithoutIndexer) {
  GgufContents contents = Small();
  contents.SetArray("qwen4exp.attention.compress_ratios", std::vector<uint32_t>{0, 0, 0, 0});
  EXPECT_TRUE(LoadContents(contents).ok());
  std::erase_if(contents.tensors, [](const GgufContents::Tensor& tensor) {
    return tensor.name.find(".indexer.") != std::string::npos;
  });
  const absl::StatusOr<ModelSpec> spec = LoadContents(contents);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->layers[3].compress_ratio, 0);
}

TEST(Qwen4ExpTest, PassesOverVisionTensors) {
  GgufContents contents = Small();
  contents.tensors.push_back({.name = "v.blk.0.attn_q.weight",
                              .dims = {4},
                              .type = 0,
                              .offset = {},
                              .bytes = 16,
                              .data = {}});
  EXPECT_TRUE(LoadContents(contents).ok());
}

// ---- refusals ---------------------------------------------------------------------------------

struct Refusal {
  std::string name;
  std::function<void(GgufContents&)> change;
  std::vector<std::string> words;  // that the message must hold
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class Qwen4ExpRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(Qwen4ExpRefusalTest, IsRefusedWithKeyOrTensor) {
  GgufContents contents = Small();
  GetParam().change(contents);
  ExpectRefused(contents, GetParam().words);
}

Refusal Uint(const std::string& key, uint32_t value, std::vector<std::string> words = {}) {
  words.push_back("key: qwen4exp." + key);
  words.push_back("offset: ");
  return {key + " " + std::to_string(value),
          [=](GgufContents& c) { c.Set("qwen4exp." + key, value); }, words};
}

template <typename T>
Refusal Array(const std::string& key, std::vector<T> values, std::vector<std::string> words = {}) {
  words.push_back("key: qwen4exp." + key);
  words.push_back("offset: ");
  return {key + " array", [=](GgufContents& c) { c.SetArray("qwen4exp." + key, values); }, words};
}

Refusal Shape(const std::string& tensor, std::vector<uint64_t> dims) {
  return {tensor + " shape",
          [=](GgufContents& c) {
            GgufContents::Tensor& changed = c.tensor(tensor);
            changed.dims = dims;
            changed.bytes = 4;
            for (const uint64_t dim : dims) changed.bytes *= dim;
          },
          {"shape disagrees", tensor, "wanted: {", "got: {", "offset: "}};
}

std::vector<Refusal> SizeRefusals() {
  return {
      Uint("block_count", 0, {"out of range"}),
      Uint("block_count", 0xffffffff, {"out of range"}),
      Uint("embedding_length", 0, {"out of range"}),
      Uint("embedding_length", 0xffffffff, {"out of range"}),
      Uint("context_length", 0, {"out of range"}),
      Uint("attention.head_count", 0, {"out of range"}),
      Uint("attention.head_count_kv", 0, {"out of range"}),
      Uint("attention.head_count_kv", 3, {"not a multiple"}),
      Uint("attention.key_length", 0, {"out of range"}),
      Uint("attention.value_length", 16, {"differ in size"}),
      Uint("rope.dimension_count", 0, {"out of range"}),
      Uint("rope.dimension_count", 15, {"odd or more"}),
      Uint("rope.dimension_count", 34, {"odd or more"}),
      Array<int32_t>("rope.dimension_sections", {4, 2, 2, 0}, {"uncovered"}),
      Array<int32_t>("rope.dimension_sections", {3, 3}, {"too short"}),
      Array<int32_t>("rope.dimension_sections", {3, 3, -2, 0}, {"negative"}),
      Uint("full_attention_interval", 0, {"out of range"}),
      Uint("expert_count", 0, {"out of range"}),
      Uint("expert_count", 1000000, {"out of range"}),
      Uint("expert_used_count", 0, {"out of range"}),
      Uint("expert_used_count", 9, {"more experts are used"}),
      Uint("expert_feed_forward_length", 0, {"out of range"}),
      Array<uint32_t>("expert_feed_forward_length", {16, 16, 16}, {"one per block"}),
      Array<uint32_t>("expert_feed_forward_length", {16, 16, 16, 0}, {"element 3"}),
      Uint("expert_shared_feed_forward_length", 0, {"out of range"}),
      Uint("ssm.conv_kernel", 0, {"out of range"}),
      Uint("ssm.state_size", 0, {"out of range"}),
      Uint("ssm.group_count", 0, {"out of range"}),
      Uint("ssm.time_step_rank", 0, {"out of range"}),
      Uint("ssm.time_step_rank", 7, {"not a multiple"}),
      Uint("ssm.inner_size", 95, {"inner size"}),
      Uint("hyper_connection.count", 1, {"out of range"}),
      Uint("hyper_connection.low_rank", 0, {"out of range"}),
      Uint("attention.indexer.head_count", 0, {"out of range"}),
      Uint("attention.indexer.key_length", 8, {"smaller than the rotated"}),
      Uint("attention.indexer.top_k", 0, {"out of range"}),
      Uint("nextn_predict_layers", 4, {"leave no layer"}),
      Refusal{
          "missing draft block",
          [](GgufContents& c) {
            c.Set("qwen4exp.block_count", uint32_t{5});
            c.Set("qwen4exp.nextn_predict_layers", uint32_t{1});
            c.SetArray("qwen4exp.attention.compress_ratios", std::vector<uint32_t>{0, 0, 0, 4, 0});
          },
          {"no tensors of its draft block", "block 4"}},
  };
}

std::vector<Refusal> SparseRefusals() {
  return {
      Array<uint32_t>("attention.compress_ratios", {0, 0, 4}, {"one per block"}),
      Array<uint32_t>("attention.compress_ratios", {0, 0, 0, 4, 0}, {"one per block"}),
      Array<uint32_t>("attention.compress_ratios", {4, 0, 0, 4}, {"without attention"}),
      Array<uint32_t>("attention.compress_ratios", {0, 0, 0, 3}, {"not a multiple", "ratio: 3"}),
      Array<uint32_t>("attention.compress_ratios", {0, 0, 0, 128},
                      {"does not divide the 64 tokens of a cache page"}),
      Array<float>("attention.compress_ratios", {0, 0, 0, 4}, {"wrong type"}),
      Array<uint32_t>("attention.recurrent_layers", {1, 1, 1, 0}, {"wrong type"}),
  };
}

std::vector<Refusal> PleRefusals() {
  return {
      Array<uint32_t>("ple.layers", {3}, {"linear-attention"}),
      Array<uint32_t>("ple.layers", {4}, {"linear-attention"}),
      Array<uint32_t>("ple.layers", {0, 1}, {"more than one layer"}),
      Uint("ple.ngram_size", 1, {"out of range"}),
      Uint("ple.heads_per_ngram", 0, {"out of range"}),
      Refusal{"rows do not fill the hidden size",
              [](GgufContents& c) { c.Set("qwen4exp.ple.heads_per_ngram", uint32_t{2}); },
              {"do not fill", "embedding_length_per_layer_input"}},
      Uint("ple.conv_kernel", 0, {"out of range"}),
      Uint("ple.eos_token_id", 273, {"out of range"}),
      Uint("ple.image_token_id", 273, {"out of range"}),
      Uint("embedding_length_per_layer_input", 0, {"out of range"}),
      Array<uint64_t>("ple.layer_multipliers", {1, 2}, {"too short"}),
      Array<uint64_t>("ple.head_vocab_sizes", {211, 223, 227}, {"too short"}),
      Array<uint64_t>("ple.head_vocab_sizes", {211, 223, 227, 229, 233, 239, 0, 251}, {"no rows"}),
      Refusal{"last head ends beyond the table",
              [](GgufContents& c) {
                c.SetArray("qwen4exp.ple.head_vocab_sizes",
                           std::vector<uint64_t>{211, 223, 227, 229, 233, 239, 241, 100000});
              },
              {"beyond the table", "head 7", "key: qwen4exp.ple.head_offsets"}},
      Array<uint64_t>("ple.head_offsets",
                      {0, 1, 2, 3, 4, 5, 6, std::numeric_limits<uint64_t>::max() - 8},
                      {"beyond the table", "head 7"}),
  };
}

std::vector<Refusal> OtherRefusals() {
  const auto missing_key = [](const std::string& key) {
    return Refusal{"no " + key,
                   [=](GgufContents& c) { c.Remove("qwen4exp." + key); },
                   {"missing", "qwen4exp." + key}};
  };
  const auto missing_tensor = [](const std::string& name) {
    return Refusal{
        "no " + name, [=](GgufContents& c) { c.RemoveTensor(name); }, {"tensor is missing", name}};
  };
  const auto wrong_type = [](const std::string& key) {
    return Refusal{key + " is text",
                   [=](GgufContents& c) { c.SetString("qwen4exp." + key, "4"); },
                   {"wrong type", "key: qwen4exp." + key, "offset: "}};
  };
  const auto epsilon = [](const std::string& name, float value) {
    return Refusal{
        "epsilon " + name,
        [=](GgufContents& c) { c.Set("qwen4exp.attention.layer_norm_rms_epsilon", value); },
        {"not a positive number", "layer_norm_rms_epsilon"}};
  };
  return {
      missing_key("block_count"),
      missing_key("attention.layer_norm_rms_epsilon"),
      missing_key("rope.dimension_sections"),
      missing_key("ssm.inner_size"),
      missing_key("hyper_connection.count"),
      missing_key("attention.indexer.top_k"),
      missing_key("attention.compress_ratios"),
      missing_key("ple.layer_multipliers"),
      wrong_type("block_count"),
      wrong_type("expert_count"),
      wrong_type("rope.freq_base"),
      wrong_type("ple.layers"),
      epsilon("zero", 0.0f),
      epsilon("nan", std::numeric_limits<float>::quiet_NaN()),
      epsilon("infinite", std::numeric_limits<float>::infinity()),
      Refusal{"rope scaling",
              [](GgufContents& c) { c.SetString("qwen4exp.rope.scaling.type", "yarn"); },
              {"rope scaling is not supported", "offset: "}},
      missing_tensor("token_embd.weight"),
      missing_tensor("output_hc_up.weight"),
      missing_tensor("per_layer_token_embd.weight"),
      missing_tensor("blk.0.ssm_a"),
      missing_tensor("blk.1.ple_norm_conv.weight"),
      missing_tensor("blk.3.indexer.k_norm.weight"),
      missing_tensor("blk.2.ffn_down_exps.weight"),
      missing_tensor("blk.3.hc_ffn_inject.weight"),
      Shape("blk.0.ffn_gate_exps.weight", {32, 16, 7}),
      Shape("blk.0.ffn_down_exps.weight", {16, 32, 9}),
      Shape("blk.0.ffn_gate_inp.weight", {32, 7}),
      Shape("blk.0.attn_qkv.weight", {32, 159}),
      Shape("blk.3.attn_q.weight", {32, 128}),
      Shape("blk.3.attn_output.weight", {64, 32}),
      Shape("blk.1.ple_conv1d.weight", {3, 128}),
      Shape("output.weight", {32, 272}),
      Shape("per_layer_token_embd.weight", {8, 1920}),
      Shape("blk.0.hc_attn_norm.weight", {32}),
      Refusal{"vocabulary of another size",
              [](GgufContents& c) {
                c.SetStrings("tokenizer.ggml.tokens", {"a", "b"});
              },
              {"vocabulary and embedding differ", "tokens: 2, rows: 273", "tokenizer.ggml.tokens"}},
      Refusal{"tensor that is not known",
              [](GgufContents& c) {
                c.tensors.push_back({.name = "blk.0.attn_norm.weight",
                                     .dims = {32},
                                     .type = 0,
                                     .offset = {},
                                     .bytes = 128,
                                     .data = {}});
              },
              {"not part of this architecture", "blk.0.attn_norm.weight", "offset: "}},
      Refusal{"layer beyond the last",
              [](GgufContents& c) { c.tensor("blk.0.ssm_a").name = "blk.4.ssm_a"; },
              {"missing", "blk.0.ssm_a"}},
      Refusal{"unknown architecture",
              [](GgufContents& c) { c.SetString("general.architecture", "llama"); },
              {"not supported: llama", "supported: qwen3moe, qwen3next, qwen35moe, qwen4exp",
               "offset: "}},
      Refusal{"no architecture",
              [](GgufContents& c) { c.Remove("general.architecture"); },
              {"general.architecture"}},
      Refusal{"architecture of another type",
              [](GgufContents& c) { c.Set("general.architecture", uint32_t{4}); },
              {"wrong type", "general.architecture", "offset: "}},
  };
}

std::vector<Refusal> AllRefusals() {
  std::vector<Refusal> all;
  for (const auto& group : {SizeRefusals(), SparseRefusals(), PleRefusals(), OtherRefusals()}) {
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Qwen4ExpRefusalTest, ::testing::ValuesIn(AllRefusals()),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : info.param.name) {
                             if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
                           }
                           return fmt::format("{}_{}", name, info.index);
                         });

}  // namespace
}  // namespace switchyard::model
