#include "app/synth/synth_options.h"

#include <utility>

#include "app/synth/synth_tokenizer.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

// Tokens of one page of the KV cache; blocks of sparse attention must not cross a page.
constexpr int kCachePageTokens = 64;
constexpr int kMaxSize = 1 << 20;

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

SynthOptions Bench() {
  SynthOptions options = FlashNext();
  options.num_layers = 8;
  options.vocab_size = 32768;
  options.num_unused_tokens = 64;
  options.num_experts = 32;
  options.ple_rows_per_head = 20000;
  options.sparse = false;
  return options;
}

absl::Status CheckRange(std::string_view name, int value, int min, int max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return InvalidArgument("{} is out of range: {}, allowed: {} to {}", name, value, min, max);
}

absl::Status CheckRanges(const SynthOptions& o) {
  struct Range {
    std::string_view name;
    int value;
    int min;
    int max;
  };
  const Range ranges[] = {
      {"layers", o.num_layers, 1, 4096},
      {"hidden", o.hidden_size, 1, kMaxSize},
      {"vocab", o.vocab_size, MinVocabSize(), kMaxSize},
      {"unused", o.num_unused_tokens, 0, o.vocab_size - MinVocabSize()},
      {"context", o.context_length, 1, 1 << 30},
      {"interval", o.full_attention_interval, 1, 4096},
      {"streams", o.num_residual_streams, 2, 64},
      {"low-rank", o.hc_low_rank, 1, kMaxSize},
      {"heads", o.num_heads, 1, 4096},
      {"kv-heads", o.num_kv_heads, 1, 4096},
      {"head-dim", o.head_dim, 1, 4096},
      {"rotary-dims", o.num_rotary_dims, 2, o.head_dim},
      {"index-heads", o.num_index_heads, 1, 4096},
      {"index-dim", o.index_head_dim, o.num_rotary_dims, 4096},
      {"budget", o.budget_tokens, 1, kMaxSize},
      {"ratio", o.compress_ratio, 0, kCachePageTokens},
      {"key-heads", o.num_key_heads, 1, 4096},
      {"value-heads", o.num_value_heads, 1, 4096},
      {"state", o.delta_head_dim, 1, 4096},
      {"conv-kernel", o.conv_kernel, 1, 64},
      {"experts", o.num_experts, 1, 65535},
      {"top-k", o.top_k, 1, o.num_experts},
      {"expert-hidden", o.expert_hidden_size, 1, kMaxSize},
      {"shared-expert-hidden", o.shared_expert_hidden_size, 1, kMaxSize},
      {"ple-layer", o.ple_layer, -1, o.num_layers - 1},
      {"ngram", o.ngram_size, 2, 16},
      {"heads-per-ngram", o.heads_per_ngram, 1, 1024},
      {"ple-conv", o.ple_conv_kernel, 1, 64},
      {"ple-rows", o.ple_rows_per_head, 2, 100000000},
      {"mtp", o.num_mtp_layers, 0, 8},
      {"split", o.num_shards, 1, 99999},
  };
  for (const Range& range : ranges) {
    SWITCHYARD_RETURN_IF_ERROR(CheckRange(range.name, range.value, range.min, range.max));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<std::string>& SynthPresetNames() {
  static const auto& names = *new std::vector<std::string>{"tiny", "bench", "flash-next"};
  return names;
}

absl::StatusOr<SynthOptions> SynthPreset(std::string_view name) {
  if (name == "tiny") return SynthOptions();
  if (name == "bench") return Bench();
  if (name == "flash-next") return FlashNext();
  return InvalidArgument("unknown preset: {}, known: tiny, bench, flash-next", name);
}

bool IsAttentionLayer(const SynthOptions& options, int layer) {
  return (layer + 1) % options.full_attention_interval == 0;
}

int NumPleHeads(const SynthOptions& options) {
  return (options.ngram_size - 1) * options.heads_per_ngram;
}

absl::Status CheckSynthOptions(const SynthOptions& options) {
  SWITCHYARD_RETURN_IF_ERROR(CheckRanges(options));
  if (options.num_heads % options.num_kv_heads != 0) {
    return InvalidArgument("heads must be a multiple of kv-heads: {}, kv-heads: {}",
                           options.num_heads, options.num_kv_heads);
  }
  if (options.num_value_heads % options.num_key_heads != 0) {
    return InvalidArgument("value-heads must be a multiple of key-heads: {}, key-heads: {}",
                           options.num_value_heads, options.num_key_heads);
  }
  if (options.num_rotary_dims % 2 != 0) {
    return InvalidArgument("rotary-dims must be even: {}", options.num_rotary_dims);
  }
  if (options.compress_ratio > 0 && kCachePageTokens % options.compress_ratio != 0) {
    return InvalidArgument("ratio must divide {}: {}", kCachePageTokens, options.compress_ratio);
  }
  if (options.compress_ratio > 0 && options.budget_tokens % options.compress_ratio != 0) {
    return InvalidArgument("budget must be a multiple of ratio: {}, ratio: {}",
                           options.budget_tokens, options.compress_ratio);
  }
  if (options.ple_layer < 0) return absl::OkStatus();
  if (IsAttentionLayer(options, options.ple_layer)) {
    return InvalidArgument(
        "ple-layer must be no attention layer: {}, attention is every layer of interval {}",
        options.ple_layer, options.full_attention_interval);
  }
  if (options.hidden_size % NumPleHeads(options) != 0) {
    return InvalidArgument("hidden must be a multiple of the n-gram heads: {}, heads: {}",
                           options.hidden_size, NumPleHeads(options));
  }
  // Row numbers are 32-bit; primes lie close together, so a few rows more than asked for are used.
  if (int64_t{options.ple_rows_per_head} * NumPleHeads(options) > 2000000000) {
    return InvalidArgument("n-gram table has too many rows: ple-rows {} times {} heads",
                           options.ple_rows_per_head, NumPleHeads(options));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::app
