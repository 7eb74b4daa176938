#include "app/synth/synth_metadata.h"

#include <fmt/format.h>
#include <string>
#include <vector>

#include "app/synth/ple_constants.h"
#include "app/synth/synth_tokenizer.h"

namespace switchyard::app {
namespace {

constexpr float kRmsEpsilon = 1e-6f;

uint32_t U32(int64_t value) { return static_cast<uint32_t>(value); }

// Adds keys of one architecture, without its prefix.
class ArchKeys {
 public:
  ArchKeys(GgufEncoder& encoder, std::string prefix)
      : encoder_(encoder), prefix_(std::move(prefix)) {}
  void Add(const char* key, int64_t value) { encoder_.AddUint32(prefix_ + key, U32(value)); }
  void AddFloat(const char* key, float value) { encoder_.AddFloat(prefix_ + key, value); }
  void AddUint32s(const char* key, const std::vector<uint32_t>& values) {
    encoder_.AddUint32s(prefix_ + key, values);
  }
  void AddInt32s(const char* key, const std::vector<int32_t>& values) {
    encoder_.AddInt32s(prefix_ + key, values);
  }
  void AddUint64s(const char* key, const std::vector<uint64_t>& values) {
    encoder_.AddUint64s(prefix_ + key, values);
  }

 private:
  GgufEncoder& encoder_;
  std::string prefix_;
};

// Pairs of each axis when axes take turns; the fourth axis has none.
std::vector<int32_t> RopeSections(int num_rotary_dims) {
  const int num_pairs = num_rotary_dims / 2;
  return {(num_pairs + 2) / 3, (num_pairs + 1) / 3, num_pairs / 3, 0};
}

void AddSparseAttentionKeys(const SynthOptions& o, ArchKeys& keys) {
  keys.Add("attention.indexer.head_count", o.num_index_heads);
  keys.Add("attention.indexer.key_length", o.index_head_dim);
  keys.Add("attention.indexer.top_k", o.budget_tokens);
  std::vector<uint32_t> ratios;
  for (int layer = 0; layer < o.num_layers; ++layer) {
    ratios.push_back(IsAttentionLayer(o, layer) ? U32(o.compress_ratio) : 0);
  }
  ratios.resize(static_cast<size_t>(o.num_layers + o.num_mtp_layers));  // draft blocks are dense
  keys.AddUint32s("attention.compress_ratios", ratios);
}

void AddAttentionKeys(const SynthOptions& o, ArchKeys& keys) {
  keys.Add("attention.head_count", o.num_heads);
  keys.Add("attention.head_count_kv", o.num_kv_heads);
  keys.Add("attention.key_length", o.head_dim);
  keys.Add("attention.value_length", o.head_dim);
  keys.AddFloat("attention.layer_norm_rms_epsilon", kRmsEpsilon);
  keys.Add("rope.dimension_count", o.num_rotary_dims);
  if (o.architecture.has_rope_sections) {
    keys.AddInt32s("rope.dimension_sections", RopeSections(o.num_rotary_dims));
  }
  keys.AddFloat("rope.freq_base", static_cast<float>(o.architecture.rope_base));
  if (o.architecture.has_sparse_attention) AddSparseAttentionKeys(o, keys);
}

void AddDeltaNetKeys(const SynthOptions& o, ArchKeys& keys) {
  keys.Add("full_attention_interval", o.full_attention_interval);
  keys.Add("ssm.conv_kernel", o.conv_kernel);
  keys.Add("ssm.state_size", o.delta_head_dim);
  keys.Add("ssm.group_count", o.num_key_heads);
  keys.Add("ssm.time_step_rank", o.num_value_heads);
  keys.Add("ssm.inner_size", int64_t{o.num_value_heads} * o.delta_head_dim);
}

void AddPleKeys(const SynthOptions& o, const SynthTokenizer& tokenizer, ArchKeys& keys) {
  const std::vector<uint64_t> sizes =
      PrimesFrom(static_cast<uint64_t>(o.ple_rows_per_head), NumPleHeads(o));
  keys.AddUint32s("ple.layers", {U32(o.ple_layer)});
  keys.Add("ple.ngram_size", o.ngram_size);
  keys.Add("ple.heads_per_ngram", o.heads_per_ngram);
  keys.Add("ple.conv_kernel", o.ple_conv_kernel);
  keys.Add("ple.eos_token_id", tokenizer.end_of_text_id);
  keys.Add("ple.image_token_id", tokenizer.image_id);
  keys.AddUint64s("ple.layer_multipliers", PleMultipliers(o.ngram_size, o.vocab_size));
  keys.AddUint64s("ple.head_vocab_sizes", sizes);
  keys.AddUint64s("ple.head_offsets", PrefixSums(sizes));
  keys.Add("embedding_length_per_layer_input", o.hidden_size / NumPleHeads(o));
}

void AddArchKeys(const SynthOptions& o, const SynthTokenizer& tokenizer, ArchKeys& keys) {
  keys.Add("block_count", o.num_layers + o.num_mtp_layers);
  if (o.num_mtp_layers > 0) keys.Add("nextn_predict_layers", o.num_mtp_layers);
  keys.Add("context_length", o.context_length);
  keys.Add("embedding_length", o.hidden_size);
  AddAttentionKeys(o, keys);
  keys.Add("expert_count", o.num_experts);
  keys.Add("expert_used_count", o.top_k);
  keys.Add("expert_feed_forward_length", o.expert_hidden_size);
  // Readers of these files ask for the width of a dense layer, though there is none.
  if (!o.architecture.has_mixers) keys.Add("feed_forward_length", o.expert_hidden_size * o.top_k);
  if (o.architecture.has_shared_expert) {
    keys.Add("expert_shared_feed_forward_length", o.shared_expert_hidden_size);
  }
  if (o.architecture.has_delta_nets) AddDeltaNetKeys(o, keys);
  if (o.architecture.has_mixers) {
    keys.Add("hyper_connection.count", o.num_residual_streams);
    keys.Add("hyper_connection.low_rank", o.hc_low_rank);
  }
  if (o.ple_layer >= 0) AddPleKeys(o, tokenizer, keys);
}

void AddTokenizerKeys(const SynthTokenizer& tokenizer, const std::string& pre_tokenizer,
                      GgufEncoder& encoder) {
  encoder.AddString("tokenizer.ggml.model", "gpt2");
  encoder.AddString("tokenizer.ggml.pre", pre_tokenizer);
  encoder.AddStrings("tokenizer.ggml.tokens", tokenizer.tokens);
  encoder.AddInt32s("tokenizer.ggml.token_type", tokenizer.token_types);
  encoder.AddStrings("tokenizer.ggml.merges", tokenizer.merges);
  encoder.AddUint32("tokenizer.ggml.eos_token_id", U32(tokenizer.end_of_turn_id));
  encoder.AddUint32("tokenizer.ggml.padding_token_id", U32(tokenizer.end_of_text_id));
  encoder.AddBool("tokenizer.ggml.add_bos_token", false);
  encoder.AddString("tokenizer.chat_template", SynthChatTemplate());
}

}  // namespace

void AddSynthMetadata(const SynthOptions& options, const TypeRules& types, GgufEncoder& encoder) {
  const SynthArchitecture& architecture = options.architecture;
  const SynthTokenizer tokenizer =
      MakeSynthTokenizer(options.vocab_size, options.num_unused_tokens);
  encoder.AddString("general.architecture", architecture.name);
  encoder.AddString("general.name", "synthetic");
  std::string description = "all weights are zero";
  if (!options.sparse) {
    description = fmt::format("random weights, types {}, seed {}", options.types, options.seed);
    if (options.router_skew != 0) {
      description += fmt::format(", router skew {}", options.router_skew);
    }
  }
  encoder.AddString("general.description", description);
  encoder.AddUint32("general.quantization_version", 2);
  // Informational: the ids that llama.cpp gives to files of mostly one type. A mixture of one's own
  // has none.
  constexpr uint32_t kFileTypeF32 = 0;
  constexpr uint32_t kFileTypeIq4Xs = 30;
  if (types.is_plain()) {
    encoder.AddUint32("general.file_type", types.is_mixed() ? kFileTypeIq4Xs : kFileTypeF32);
  }
  ArchKeys keys(encoder, architecture.name + ".");
  AddArchKeys(options, tokenizer, keys);
  AddTokenizerKeys(tokenizer, architecture.pre_tokenizer, encoder);
}

}  // namespace switchyard::app
