#include "app/synth/synth_options.h"

#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "app/synth/ple_constants.h"
#include "app/synth/synth_presets.h"
#include "app/synth/type_rules.h"

namespace switchyard::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The values in the released model's metadata.
TEST(PleConstantsTest, EqualThoseOfTheReleasedModel) {
  EXPECT_THAT(PleMultipliers(3, 248320),
              ElementsAre(23703573157769u, 20109073645365u, 8052911324071u));
  const std::vector<uint64_t> sizes = PrimesFrom(20000000, 16);
  EXPECT_THAT(sizes, ElementsAre(20000003u, 20000023u, 20000033u, 20000047u, 20000059u, 20000063u,
                                 20000069u, 20000077u, 20000081u, 20000093u, 20000107u, 20000147u,
                                 20000153u, 20000159u, 20000161u, 20000171u));
  const std::vector<uint64_t> offsets = PrefixSums(sizes);
  EXPECT_EQ(offsets[0], 0u);
  EXPECT_EQ(offsets[3], 60000059u);
  EXPECT_EQ(offsets[15], 300001275u);
  EXPECT_EQ(PleTableRows(sizes), 320001536);
}

TEST(PleConstantsTest, ProductsOfMultipliersStayWithin63Bits) {
  for (const int vocab_size : {300, 512, 32768, 248320, 1 << 20}) {
    for (const uint64_t multiplier : PleMultipliers(16, vocab_size)) {
      EXPECT_EQ(multiplier % 2, 1u);
      EXPECT_LE(multiplier, static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) /
                                static_cast<uint64_t>(vocab_size - 1));
    }
  }
}

TEST(SynthOptionsTest, PresetsAreValid) {
  int num_presets = 0;
  for (const std::string& architecture : SynthArchitectureNames()) {
    for (const std::string& name : SynthPresetNames()) {
      const absl::StatusOr<SynthOptions> options = SynthPreset(name, architecture);
      if (!options.ok()) continue;
      ++num_presets;
      EXPECT_EQ(options->architecture.name, architecture);
      const absl::Status status = CheckSynthOptions(*options);
      EXPECT_TRUE(status.ok()) << architecture << " " << name << ": " << status;
      EXPECT_TRUE(TypeRules::Create(*options).ok()) << architecture << " " << name;
    }
  }
  EXPECT_EQ(num_presets, 9);  // tiny and bench of four architectures, flash-next
}

TEST(SynthOptionsTest, UnknownPresetsAndArchitecturesAreNamedWithTheKnownOnes) {
  const auto refusal = [](std::string_view preset, std::string_view architecture) {
    const absl::Status status = SynthPreset(preset, architecture).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal("huge", "qwen4exp"),
            "unknown preset of qwen4exp: huge, known: tiny, bench, flash-next");
  EXPECT_EQ(refusal("flash-next", "qwen3moe"),
            "unknown preset of qwen3moe: flash-next, known: tiny, bench");
  EXPECT_EQ(refusal("tiny", "llama"),
            "unknown architecture: llama, known: qwen4exp, qwen35moe, qwen3next, qwen3moe");
}

// A size of a part that the architecture does not have would be ignored.
TEST(SynthOptionsTest, RefusesSizesOfAbsentParts) {
  for (const auto& [member, value, message] :
       std::vector<std::tuple<int SynthOptions::*, int, const char*>>{
           {&SynthOptions::num_residual_streams, 4, "streams is out of range: 4, allowed: 1 to 1"},
           {&SynthOptions::compress_ratio, 4, "ratio is out of range: 4, allowed: 0 to 0"},
           {&SynthOptions::full_attention_interval, 4, "interval is out of range"},
           {&SynthOptions::num_key_heads, 2, "key-heads is out of range"},
           {&SynthOptions::shared_expert_hidden_size, 32, "shared-expert-hidden is out of range"},
           {&SynthOptions::ple_layer, 1, "ple-layer is out of range: 1, allowed: -1 to -1"},
           {&SynthOptions::num_mtp_layers, 1, "mtp is out of range"}}) {
    SynthOptions options = *SynthPreset("tiny", "qwen3moe");
    options.*member = value;
    EXPECT_THAT(std::string(CheckSynthOptions(options).message()), HasSubstr(message));
  }
}

struct BadSize {
  int SynthOptions::*member;
  int value;
  const char* message;
};

class BadSizeTest : public ::testing::TestWithParam<BadSize> {};

TEST_P(BadSizeTest, IsRefusedByName) {
  SynthOptions options;
  options.*GetParam().member = GetParam().value;
  const absl::Status status = CheckSynthOptions(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadSizeTest,
    ::testing::Values(
        BadSize{&SynthOptions::num_layers, 0, "layers is out of range: 0, allowed: 1 to 4096"},
        BadSize{&SynthOptions::hidden_size, -64, "hidden is out of range"},
        BadSize{&SynthOptions::hidden_size, 60, "hidden must be a multiple of the n-gram heads"},
        BadSize{&SynthOptions::vocab_size, 281, "vocab is out of range: 281, allowed: 282"},
        BadSize{&SynthOptions::num_unused_tokens, 231, "unused is out of range"},
        BadSize{&SynthOptions::num_residual_streams, 1, "streams is out of range"},
        BadSize{&SynthOptions::num_heads, 3, "heads must be a multiple of kv-heads"},
        BadSize{&SynthOptions::num_value_heads, 5, "value-heads must be a multiple of key-heads"},
        BadSize{&SynthOptions::num_rotary_dims, 34, "rotary-dims is out of range"},
        BadSize{&SynthOptions::num_rotary_dims, 15, "rotary-dims must be even"},
        BadSize{&SynthOptions::index_head_dim, 8, "index-dim is out of range"},
        BadSize{&SynthOptions::compress_ratio, 6, "ratio must divide 64"},
        BadSize{&SynthOptions::budget_tokens, 66, "budget must be a multiple of ratio"},
        BadSize{&SynthOptions::top_k, 9, "top-k is out of range: 9, allowed: 1 to 8"},
        BadSize{&SynthOptions::num_experts, 0, "experts is out of range"},
        BadSize{&SynthOptions::ple_layer, 3, "ple-layer must be no attention layer"},
        BadSize{&SynthOptions::ple_layer, 4, "ple-layer is out of range"},
        BadSize{&SynthOptions::num_shards, 0, "split is out of range"}));

DType ChooseMatrix(const std::string& types, const std::string& name, int64_t row_length = 2560) {
  SynthOptions options;
  options.types = types;
  const absl::StatusOr<TypeRules> rules = TypeRules::Create(options);
  EXPECT_TRUE(rules.ok()) << rules.status();
  return rules->Choose(name, row_length, /*is_vector=*/false);
}

TEST(TypeRulesTest, MixedIsThePublishedLayout) {
  EXPECT_EQ(ChooseMatrix("mixed", "blk.0.ffn_gate_exps.weight"), DType::kIQ3_S);
  EXPECT_EQ(ChooseMatrix("mixed", "blk.2.ffn_up_exps.weight"), DType::kIQ4_XS);
  EXPECT_EQ(ChooseMatrix("mixed", "blk.20.ffn_up_exps.weight"), DType::kIQ3_S);
  EXPECT_EQ(ChooseMatrix("mixed", "blk.0.ffn_down_exps.weight", 640), DType::kIQ4_NL);
  EXPECT_EQ(ChooseMatrix("mixed", "blk.46.ffn_down_exps.weight", 640), DType::kQ8_0);
  EXPECT_EQ(ChooseMatrix("mixed", "blk.3.indexer.q_proj.weight"), DType::kBF16);
  EXPECT_EQ(ChooseMatrix("mixed", "output.weight"), DType::kQ6_K);
  EXPECT_EQ(ChooseMatrix("mixed", "output_hc_down.weight", 10240), DType::kQ8_0);
  EXPECT_EQ(ChooseMatrix("mixed", "per_layer_token_embd.weight", 160), DType::kIQ4_NL);
  EXPECT_EQ(ChooseMatrix("mixed", "blk.0.ffn_gate_inp.weight"), DType::kF32);
  EXPECT_EQ(ChooseMatrix("mixed", "blk.0.hc_ffn_inject.weight", 10240), DType::kF32);
  EXPECT_EQ(ChooseMatrix("mixed", "blk.0.ssm_conv1d.weight", 4), DType::kF32);
}

TEST(TypeRulesTest, LastMatchWins) {
  const std::string types = "mixed,exps=Q4_K,blk[.]1[.].*down=q5_k,^output=F16";
  EXPECT_EQ(ChooseMatrix(types, "blk.0.ffn_down_exps.weight"), DType::kQ4_K);
  EXPECT_EQ(ChooseMatrix(types, "blk.1.ffn_down_exps.weight"), DType::kQ5_K);
  EXPECT_EQ(ChooseMatrix(types, "output.weight"), DType::kF16);
  EXPECT_EQ(ChooseMatrix(types, "blk.0.attn_output.weight"), DType::kQ8_0);
}

TEST(TypeRulesTest, ShortcutsNameTheirTensors) {
  SynthOptions options;
  options.types = "mixed,blk.7.*=F32";
  options.gate_up_type = "IQ4_XS";
  options.down_type = "Q5_1";
  options.dense_type = "Q4_0";
  const absl::StatusOr<TypeRules> rules = TypeRules::Create(options);
  ASSERT_TRUE(rules.ok());
  EXPECT_EQ(rules->Choose("blk.0.ffn_gate_exps.weight", 2560, false), DType::kIQ4_XS);
  EXPECT_EQ(rules->Choose("blk.0.ffn_gate_up_exps.weight", 2560, false), DType::kIQ4_XS);
  EXPECT_EQ(rules->Choose("blk.0.ffn_down_exps.weight", 640, false), DType::kQ5_1);
  EXPECT_EQ(rules->Choose("blk.0.ffn_down_shexp.weight", 640, false), DType::kQ4_0);
  EXPECT_EQ(rules->Choose("blk.0.attn_gate.weight", 2560, false), DType::kQ4_0);
  EXPECT_EQ(rules->Choose("token_embd.weight", 2560, false), DType::kQ4_0);
  EXPECT_EQ(rules->Choose("per_layer_token_embd.weight", 160, false), DType::kIQ4_NL);
  EXPECT_EQ(rules->Choose("blk.0.ffn_gate_inp.weight", 2560, false), DType::kF32);
  EXPECT_EQ(rules->Choose("blk.0.attn_q_norm.weight", 256, true), DType::kF32);
  EXPECT_EQ(rules->Choose("blk.7.ffn_gate_exps.weight", 2560, false), DType::kF32);
}

TEST(TypeRulesTest, RowsThatDoNotFitGetTheNextType) {
  EXPECT_EQ(FallbackType(DType::kQ4_K, 640), DType::kQ5_0);
  EXPECT_EQ(FallbackType(DType::kQ5_K, 640), DType::kQ5_1);
  EXPECT_EQ(FallbackType(DType::kQ6_K, 640), DType::kQ8_0);
  EXPECT_EQ(FallbackType(DType::kQ2_K, 640), DType::kQ4_0);
  EXPECT_EQ(FallbackType(DType::kQ3_K, 640), DType::kQ4_0);
  EXPECT_EQ(FallbackType(DType::kIQ3_S, 640), DType::kIQ4_NL);
  EXPECT_EQ(FallbackType(DType::kIQ4_XS, 2560), DType::kIQ4_XS);
  EXPECT_EQ(FallbackType(DType::kIQ4_NL, 16), DType::kF16);
  EXPECT_EQ(FallbackType(DType::kQ8_0, 4), DType::kF16);
  EXPECT_EQ(FallbackType(DType::kF32, 4), DType::kF32);
}

TEST(TypeRulesTest, RefusesWhatItDoesNotKnow) {
  for (const char* types : {"", "mix", "f32,", "exps=Q9_9", "exps=", "(=Q8_0"}) {
    SynthOptions options;
    options.types = types;
    EXPECT_EQ(TypeRules::Create(options).status().code(), absl::StatusCode::kInvalidArgument)
        << types;
  }
}

}  // namespace
}  // namespace switchyard::app
