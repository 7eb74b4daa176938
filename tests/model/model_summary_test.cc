#include "model/model_summary.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

#include "base/status.h"
#include "model/gguf_file.h"
#include "testing/gguf_writer.h"

namespace switchyard::model {
namespace {

using switchyard::testing::GgufContents;
using switchyard::testing::TestFilePath;

constexpr uint64_t kHidden = 2560;
constexpr uint64_t kWide = 4 * kHidden;
constexpr uint64_t kLowRank = 320;
constexpr int kLayers = 48;

void Add(GgufContents& contents, const std::string& name, DType dtype, std::vector<uint64_t> dims) {
  uint64_t num_elements = 1;
  for (const uint64_t dim : dims) num_elements *= dim;
  const DTypeTraits& traits = Traits(dtype);
  contents.tensors.push_back({.name = name,
                              .dims = std::move(dims),
                              .type = static_cast<uint32_t>(dtype),
                              .offset = {},
                              .bytes = num_elements / static_cast<uint64_t>(traits.block_length) *
                                       static_cast<uint64_t>(traits.block_bytes),
                              .data = {}});
}

void AddMixer(GgufContents& contents, const std::string& prefix, bool inject) {
  Add(contents, prefix + "norm.weight", DType::kF32, {kWide});
  Add(contents, prefix + "down.weight", DType::kQ8_0, {kWide, kLowRank});
  Add(contents, prefix + "up.weight", DType::kQ8_0, {kLowRank, kWide});
  if (inject) Add(contents, prefix + "inject.weight", DType::kF32, {kWide, 4});
}

void AddDeltaNet(GgufContents& contents, const std::string& prefix) {
  Add(contents, prefix + "attn_qkv.weight", DType::kQ8_0, {kHidden, 10240});
  Add(contents, prefix + "attn_gate.weight", DType::kQ8_0, {kHidden, 6144});
  Add(contents, prefix + "ssm_conv1d.weight", DType::kF32, {4, 10240});
  Add(contents, prefix + "ssm_beta.weight", DType::kF32, {kHidden, 48});
  Add(contents, prefix + "ssm_alpha.weight", DType::kF32, {kHidden, 48});
  Add(contents, prefix + "ssm_a", DType::kF32, {48});
  Add(contents, prefix + "ssm_dt.bias", DType::kF32, {48});
  Add(contents, prefix + "ssm_norm.weight", DType::kF32, {128});
  Add(contents, prefix + "ssm_out.weight", DType::kQ8_0, {6144, kHidden});
}

void AddAttention(GgufContents& contents, const std::string& prefix) {
  Add(contents, prefix + "attn_q.weight", DType::kQ8_0, {kHidden, 12288});
  Add(contents, prefix + "attn_k.weight", DType::kQ8_0, {kHidden, 512});
  Add(contents, prefix + "attn_v.weight", DType::kQ8_0, {kHidden, 512});
  Add(contents, prefix + "attn_output.weight", DType::kQ8_0, {6144, kHidden});
  Add(contents, prefix + "attn_q_norm.weight", DType::kF32, {256});
  Add(contents, prefix + "attn_k_norm.weight", DType::kF32, {256});
  Add(contents, prefix + "indexer.q_proj.weight", DType::kBF16, {kHidden, 512});
  Add(contents, prefix + "indexer.k_proj.weight", DType::kBF16, {kHidden, 128});
  Add(contents, prefix + "indexer.q_norm.weight", DType::kF32, {128});
  Add(contents, prefix + "indexer.k_norm.weight", DType::kF32, {128});
}

void AddExperts(GgufContents& contents, const std::string& prefix, DType gate_up, DType down) {
  Add(contents, prefix + "ffn_gate_inp.weight", DType::kF32, {kHidden, 512});
  Add(contents, prefix + "ffn_gate_exps.weight", gate_up, {kHidden, 640, 512});
  Add(contents, prefix + "ffn_up_exps.weight", gate_up, {kHidden, 640, 512});
  Add(contents, prefix + "ffn_down_exps.weight", down, {640, kHidden, 512});
  Add(contents, prefix + "ffn_gate_inp_shexp.weight", DType::kF32, {kHidden});
  Add(contents, prefix + "ffn_gate_shexp.weight", DType::kQ8_0, {kHidden, 640});
  Add(contents, prefix + "ffn_up_shexp.weight", DType::kQ8_0, {kHidden, 640});
  Add(contents, prefix + "ffn_down_shexp.weight", DType::kQ8_0, {640, kHidden});
}

void AddPle(GgufContents& contents, const std::string& prefix) {
  Add(contents, prefix + "ple_key.weight", DType::kQ8_0, {kHidden, kWide});
  Add(contents, prefix + "ple_value.weight", DType::kQ8_0, {kHidden, kHidden});
  for (const char* name : {"key", "query", "conv"}) {
    Add(contents, fmt::format("{}ple_norm_{}.weight", prefix, name), DType::kF32, {kWide});
  }
  Add(contents, prefix + "ple_conv1d.weight", DType::kF32, {4, kWide});
}

void SetKeys(GgufContents& contents) {
  contents.SetString("general.architecture", "qwen4exp");
  const std::string prefix = "qwen4exp.";
  const struct {
    const char* key;
    uint32_t value;
  } sizes[] = {{"block_count", kLayers},
               {"context_length", 262144},
               {"embedding_length", 2560},
               {"attention.head_count", 24},
               {"attention.head_count_kv", 2},
               {"attention.key_length", 256},
               {"attention.value_length", 256},
               {"rope.dimension_count", 64},
               {"expert_count", 512},
               {"expert_used_count", 10},
               {"expert_feed_forward_length", 640},
               {"expert_shared_feed_forward_length", 640},
               {"ssm.conv_kernel", 4},
               {"ssm.state_size", 128},
               {"ssm.group_count", 16},
               {"ssm.time_step_rank", 48},
               {"ssm.inner_size", 6144},
               {"hyper_connection.count", 4},
               {"hyper_connection.low_rank", 320},
               {"attention.indexer.head_count", 4},
               {"attention.indexer.key_length", 128},
               {"attention.indexer.top_k", 2048},
               {"ple.ngram_size", 3},
               {"ple.heads_per_ngram", 8},
               {"ple.conv_kernel", 4},
               {"ple.eos_token_id", 248044},
               {"ple.image_token_id", 248056},
               {"embedding_length_per_layer_input", 160}};
  for (const auto& size : sizes) contents.Set(prefix + size.key, size.value);
  contents.Set(prefix + "attention.layer_norm_rms_epsilon", 1e-6f);
  contents.Set(prefix + "rope.freq_base", 1e7f);
  contents.SetArray(prefix + "rope.dimension_sections", std::vector<int32_t>{11, 11, 10, 0});
  std::vector<uint32_t> ratios(kLayers);
  for (size_t i = 3; i < kLayers; i += 4) ratios[i] = 4;
  contents.SetArray(prefix + "attention.compress_ratios", ratios);
  contents.SetArray(prefix + "ple.layers", std::vector<uint32_t>{1});
  contents.SetArray(prefix + "ple.layer_multipliers",
                    std::vector<uint64_t>{23703573157769, 20109073645365, 8052911324071});
  const std::vector<uint64_t> rows = {20000003, 20000023, 20000033, 20000047, 20000059, 20000063,
                                      20000069, 20000077, 20000081, 20000093, 20000107, 20000147,
                                      20000153, 20000159, 20000161, 20000171};
  std::vector<uint64_t> offsets(rows.size());
  for (size_t i = 1; i < rows.size(); ++i) offsets[i] = offsets[i - 1] + rows[i - 1];
  contents.SetArray(prefix + "ple.head_vocab_sizes", rows);
  contents.SetArray(prefix + "ple.head_offsets", offsets);
}

// The released model in the layout of a published 4-bit file: gate and up IQ3_S (IQ4_XS in one
// layer), down IQ4_NL (Q8_0 in five), dense part Q8_0, small tensors F32.
GgufContents FullSize() {
  GgufContents contents;
  SetKeys(contents);
  Add(contents, "token_embd.weight", DType::kQ8_0, {kHidden, 248320});
  Add(contents, "output.weight", DType::kQ6_K, {kHidden, 248320});
  AddMixer(contents, "output_hc_", false);
  Add(contents, "per_layer_token_embd.weight", DType::kIQ4_NL, {160, 320001536});
  for (int i = 0; i < kLayers; ++i) {
    const std::string prefix = fmt::format("blk.{}.", i);
    AddMixer(contents, prefix + "hc_attn_", true);
    AddMixer(contents, prefix + "hc_ffn_", true);
    if ((i + 1) % 4 == 0) {
      AddAttention(contents, prefix);
    } else {
      AddDeltaNet(contents, prefix);
    }
    const bool wide_down = i == 2 || i == 4 || i == 30 || i == 46 || i == 47;
    AddExperts(contents, prefix, i == 2 ? DType::kIQ4_XS : DType::kIQ3_S,
               wide_down ? DType::kQ8_0 : DType::kIQ4_NL);
    if (i == 1) AddPle(contents, prefix);
  }
  return contents;
}

// Expected bytes are hand-computed from the shapes: elements / block length * block bytes.
TEST(ModelSummaryTest, AddsUpTheFullSizeModel) {
  const std::string path = TestFilePath("full_size.gguf");
  FullSize().Write(path);  // 94 GB of holes
  const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::StatusOr<ModelSpec> spec = LoadModelSpec(*file);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const ModelSummary summary = Summarize(*spec);

  EXPECT_EQ(summary.num_tensors, 1224);
  EXPECT_EQ(summary.bytes, 93'671'559'680);
  EXPECT_EQ(summary.part(ModelPart::kRoutedExperts).bytes, 59'519'795'200);
  EXPECT_EQ(summary.typical_bytes_per_expert, 2'329'600);
  EXPECT_EQ(summary.min_bytes_per_expert, 2'329'600);
  EXPECT_EQ(summary.max_bytes_per_expert, 1'740'800 + 1'740'800);
  EXPECT_NEAR(summary.mean_bytes_per_expert, 2'421'867, 0.5);
  EXPECT_EQ(summary.expert_bytes_per_token, 1'162'496'000);
  EXPECT_EQ(summary.dense_bytes_per_token, 4'676'195'840);
  EXPECT_EQ(summary.part(ModelPart::kDeltaNet).bytes, 2'205'941'760 + 41'319'936);
  EXPECT_EQ(summary.part(ModelPart::kAttention).bytes + summary.part(ModelPart::kIndexer).bytes,
            635'043'840 + 39'358'464);
  EXPECT_EQ(summary.part(ModelPart::kMixers).bytes, 675'430'400 + 19'701'760);
  EXPECT_EQ(summary.part(ModelPart::kRouters).bytes, 252'149'760 - 48 * 2560 * 4);
  EXPECT_EQ(summary.part(ModelPart::kSharedExperts).bytes, 250'675'200 + 48 * 2560 * 4);
  EXPECT_EQ(summary.part(ModelPart::kPle).bytes, 35'102'720);
  EXPECT_EQ(summary.part(ModelPart::kOutput).bytes, 521'472'000);
  EXPECT_EQ(summary.part(ModelPart::kTokenEmbedding).bytes, 675'430'400);
  EXPECT_EQ(summary.part(ModelPart::kPleTable).bytes, 28'800'138'240);
  EXPECT_EQ(summary.part(ModelPart::kMtp).bytes, 0);
  EXPECT_EQ(summary.layers[0].dense_bytes, 87'235'456);
  EXPECT_EQ(summary.layers[1].dense_bytes, 87'235'456 + 35'102'720);
  EXPECT_EQ(summary.layers[3].dense_bytes, 81'011'712);
  EXPECT_EQ(summary.layers[47].bytes_per_expert, 1'408'000 + 1'740'800);

  // 640 columns are 20 blocks; 16 key heads; 24 query heads.
  const LayerSpec& linear = spec->layers[0];
  EXPECT_EQ(linear.down_shards.border, (std::array<int64_t, 5>{0, 160, 320, 480, 640}));
  EXPECT_EQ(linear.output_shards.border, (std::array<int64_t, 5>{0, 512, 1024, 1536, 2048}));
  EXPECT_EQ(linear.output_shards.num_strips, 3);
  EXPECT_EQ(spec->layers[3].output_shards.border,
            (std::array<int64_t, 5>{0, 1536, 3072, 4608, 6144}));
}

TEST(ModelSummaryTest, PartsTypesAndTensorsAddUp) {
  for (const char* path :
       {SWITCHYARD_SOURCE_DIR "/deploy/demo/switchyard-demo.gguf",
        SWITCHYARD_TEST_DATA "/qwen4exp/mixed.gguf", SWITCHYARD_TEST_DATA "/qwen4exp/mtp.gguf"}) {
    const absl::StatusOr<GgufFile> file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    const absl::StatusOr<ModelSpec> spec = LoadModelSpec(*file);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const ModelSummary summary = Summarize(*spec);
    int64_t bytes = 0;
    for (const TensorInfo& tensor : file->tensors()) bytes += tensor.bytes();
    EXPECT_EQ(summary.bytes, bytes);
    EXPECT_EQ(summary.num_tensors, static_cast<int64_t>(file->tensors().size()));
    int64_t part_bytes = 0;
    for (const PartBytes& part : summary.parts) {
      part_bytes += part.bytes;
      int64_t type_bytes = 0;
      for (const TypeBytes& type : part.types) type_bytes += type.bytes;
      EXPECT_EQ(type_bytes, part.bytes);
    }
    EXPECT_EQ(part_bytes, bytes);
    int64_t type_bytes = 0;
    for (const TypeBytes& type : summary.types) type_bytes += type.bytes;
    EXPECT_EQ(type_bytes, bytes);
    EXPECT_TRUE(
        std::is_sorted(summary.types.begin(), summary.types.end(),
                       [](const TypeBytes& a, const TypeBytes& b) { return a.bytes > b.bytes; }));
  }
}

}  // namespace
}  // namespace switchyard::model
