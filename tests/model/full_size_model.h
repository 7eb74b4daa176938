// Header of the released full-size model, for tests of sizes; its data are holes.
#pragma once

#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "testing/gguf_writer.h"

namespace switchyard::model {
namespace full_size {

inline constexpr uint64_t kHidden = 2560;
inline constexpr uint64_t kWide = 4 * kHidden;
inline constexpr uint64_t kLowRank = 320;
inline constexpr int kLayers = 48;

inline void Add(testing::GgufContents& contents, const std::string& name, DType dtype,
                std::vector<uint64_t> dims) {
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

inline void AddMixer(testing::GgufContents& contents, const std::string& prefix, bool inject) {
  Add(contents, prefix + "norm.weight", DType::kF32, {kWide});
  Add(contents, prefix + "down.weight", DType::kQ8_0, {kWide, kLowRank});
  Add(contents, prefix + "up.weight", DType::kQ8_0, {kLowRank, kWide});
  if (inject) Add(contents, prefix + "inject.weight", DType::kF32, {kWide, 4});
}

inline void AddDeltaNet(testing::GgufContents& contents, const std::string& prefix) {
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

inline void AddAttention(testing::GgufContents& contents, const std::string& prefix) {
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

inline void AddExperts(testing::GgufContents& contents, const std::string& prefix, DType gate_up,
                       DType down) {
  Add(contents, prefix + "ffn_gate_inp.weight", DType::kF32, {kHidden, 512});
  Add(contents, prefix + "ffn_gate_exps.weight", gate_up, {kHidden, 640, 512});
  Add(contents, prefix + "ffn_up_exps.weight", gate_up, {kHidden, 640, 512});
  Add(contents, prefix + "ffn_down_exps.weight", down, {640, kHidden, 512});
  Add(contents, prefix + "ffn_gate_inp_shexp.weight", DType::kF32, {kHidden});
  Add(contents, prefix + "ffn_gate_shexp.weight", DType::kQ8_0, {kHidden, 640});
  Add(contents, prefix + "ffn_up_shexp.weight", DType::kQ8_0, {kHidden, 640});
  Add(contents, prefix + "ffn_down_shexp.weight", DType::kQ8_0, {640, kHidden});
}

inline void AddPle(testing::GgufContents& contents, const std::string& prefix) {
  Add(contents, prefix + "ple_key.weight", DType::kQ8_0, {kHidden, kWide});
  Add(contents, prefix + "ple_value.weight", DType::kQ8_0, {kHidden, kHidden});
  for (const char* name : {"key", "query", "conv"}) {
    Add(contents, fmt::format("{}ple_norm_{}.weight", prefix, name), DType::kF32, {kWide});
  }
  Add(contents, prefix + "ple_conv1d.weight", DType::kF32, {4, kWide});
}

inline void SetKeys(testing::GgufContents& contents) {
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

}  // namespace full_size

// The released model in the layout of a published 4-bit file: gate and up IQ3_S (IQ4_XS in one
// layer), down IQ4_NL (Q8_0 in five), dense part Q8_0, small tensors F32.
inline testing::GgufContents FullSizeModel() {
  using namespace full_size;
  testing::GgufContents contents;
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

}  // namespace switchyard::model
