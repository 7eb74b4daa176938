#include "app/synth/synth_presets.h"

#include <algorithm>

#include "base/status.h"

namespace switchyard::app {
namespace {

struct Preset {
  const char* architecture;
  const char* name;
  SynthOptions (*make)();
};

// ---- qwen4exp ---------------------------------------------------------------------------------

// Qwen3.8-Flash-Next.
SynthOptions FlashNext() {
  SynthOptions options;
  options.num_layers = 48;
  options.hidden_size = 2560;
  options.vocab_size = 248320;
  options.num_unused_tokens = 250;
  options.context_length = 262144;
  options.hc_low_rank = 320;
  options.num_heads = 24;
  options.head_dim = 256;
  options.num_rotary_dims = 64;
  options.index_head_dim = 128;
  options.budget_tokens = 2048;
  options.num_key_heads = 16;
  options.num_value_heads = 48;
  options.delta_head_dim = 128;
  options.num_experts = 512;
  options.top_k = 10;
  options.expert_hidden_size = 640;
  options.shared_expert_hidden_size = 640;
  options.heads_per_ngram = 8;
  options.ple_rows_per_head = 20000000;
  options.types = "mixed";
  options.sparse = true;
  return options;
}

SynthOptions FlashNextBench() {
  SynthOptions options = FlashNext();
  options.num_layers = 8;
  options.vocab_size = 32768;
  options.num_unused_tokens = 64;
  options.num_experts = 32;
  options.ple_rows_per_head = 20000;
  options.sparse = false;
  return options;
}

// ---- models with plain norms ------------------------------------------------------------------

// Takes away what only qwen4exp has, and adds the norm in front of the experts.
SynthOptions WithPlainNorms(SynthOptions options, const char* name, const char* moe_norm) {
  SynthArchitecture& architecture = options.architecture;
  architecture.name = name;
  architecture.moe_norm = moe_norm;
  architecture.has_mixers = false;
  architecture.has_sparse_attention = false;
  architecture.has_ngram_embedding = false;
  options.num_residual_streams = 1;
  options.hc_low_rank = 0;
  options.num_index_heads = options.index_head_dim = 0;
  options.budget_tokens = options.compress_ratio = 0;
  options.ple_layer = -1;
  options.ngram_size = options.heads_per_ngram = 0;
  options.ple_conv_kernel = options.ple_rows_per_head = 0;
  return options;
}

SynthOptions Qwen35MoeTiny() {
  return WithPlainNorms(SynthOptions(), "qwen35moe", "post_attention_norm");
}

// Widths of 35B-A3B, and of the delta nets and attention of 80B-A3B.
SynthOptions Qwen35MoeBench() {
  SynthOptions options = Qwen35MoeTiny();
  options.num_layers = 8;
  options.hidden_size = 2048;
  options.vocab_size = 32768;
  options.num_unused_tokens = 64;
  options.context_length = 262144;
  options.num_heads = 16;
  options.head_dim = 256;
  options.num_rotary_dims = 64;
  options.num_key_heads = 16;
  options.num_value_heads = 32;
  options.delta_head_dim = 128;
  options.num_experts = 32;
  options.top_k = 8;
  options.expert_hidden_size = 512;
  options.shared_expert_hidden_size = 512;
  options.types = "mixed";
  return options;
}

void MakeQwen3Next(SynthArchitecture& architecture) {
  architecture.name = "qwen3next";
  architecture.pre_tokenizer = "qwen2";
  architecture.has_rope_sections = false;
  architecture.fused_beta_alpha = true;
}

SynthOptions Qwen3NextTiny() {
  SynthOptions options = Qwen35MoeTiny();
  MakeQwen3Next(options.architecture);
  return options;
}

SynthOptions Qwen3NextBench() {
  SynthOptions options = Qwen35MoeBench();
  MakeQwen3Next(options.architecture);
  options.top_k = 10;
  return options;
}

SynthOptions Qwen3MoeTiny() {
  SynthOptions options = WithPlainNorms(SynthOptions(), "qwen3moe", "ffn_norm");
  SynthArchitecture& architecture = options.architecture;
  architecture.pre_tokenizer = "qwen2";
  architecture.rope_base = 1e6;
  architecture.has_rope_sections = false;
  architecture.has_output_gate = false;
  architecture.has_delta_nets = false;
  architecture.has_shared_expert = false;
  architecture.has_draft_blocks = false;
  options.full_attention_interval = 1;
  options.num_rotary_dims = options.head_dim;
  options.num_key_heads = options.num_value_heads = 0;
  options.delta_head_dim = options.conv_kernel = 0;
  options.shared_expert_hidden_size = 0;
  return options;
}

// 30B-A3B.
SynthOptions Qwen3MoeBench() {
  SynthOptions options = Qwen3MoeTiny();
  options.num_layers = 12;
  options.hidden_size = 2048;
  options.vocab_size = 32768;
  options.num_unused_tokens = 64;
  options.context_length = 40960;
  options.num_heads = 32;
  options.num_kv_heads = 4;
  options.head_dim = 128;
  options.num_rotary_dims = 128;
  options.num_experts = 128;
  options.top_k = 8;
  options.expert_hidden_size = 768;
  options.types = "mixed";
  return options;
}

constexpr Preset kPresets[] = {
    {"qwen4exp", "tiny", [] { return SynthOptions(); }},
    {"qwen4exp", "bench", FlashNextBench},
    {"qwen4exp", "flash-next", FlashNext},
    {"qwen35moe", "tiny", Qwen35MoeTiny},
    {"qwen35moe", "bench", Qwen35MoeBench},
    {"qwen3next", "tiny", Qwen3NextTiny},
    {"qwen3next", "bench", Qwen3NextBench},
    {"qwen3moe", "tiny", Qwen3MoeTiny},
    {"qwen3moe", "bench", Qwen3MoeBench},
};

// Each once, in the order of the table.
std::vector<std::string> Distinct(const char* Preset::*member) {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) {
    if (std::find(names.begin(), names.end(), preset.*member) == names.end()) {
      names.emplace_back(preset.*member);
    }
  }
  return names;
}

}  // namespace

const std::vector<std::string>& SynthArchitectureNames() {
  static const auto& names = *new std::vector<std::string>(Distinct(&Preset::architecture));
  return names;
}

const std::vector<std::string>& SynthPresetNames() {
  static const auto& names = *new std::vector<std::string>(Distinct(&Preset::name));
  return names;
}

absl::StatusOr<SynthOptions> SynthPreset(std::string_view name, std::string_view architecture) {
  std::string known;
  for (const Preset& preset : kPresets) {
    if (preset.architecture != architecture) continue;
    if (preset.name == name) return preset.make();
    known += (known.empty() ? "" : ", ") + std::string(preset.name);
  }
  if (!known.empty()) {
    return InvalidArgument("unknown preset of {}: {}, known: {}", architecture, name, known);
  }
  for (const std::string& other : SynthArchitectureNames()) {
    known += (known.empty() ? "" : ", ") + other;
  }
  return InvalidArgument("unknown architecture: {}, known: {}", architecture, known);
}

}  // namespace switchyard::app
