#include "app/synth/synth_options.h"

#include <string_view>

#include "app/synth/synth_tokenizer.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::app {
namespace {

// Tokens of one page of the KV cache; blocks of sparse attention must not cross a page.
constexpr int kCachePageTokens = 64;
constexpr int kMaxSize = 1 << 20;
constexpr double kMaxRouterSkew = 4;

struct Range {
  std::string_view name;
  int value;
  int min;
  int max;
};

// The range of a part that the architecture has; of others nothing but `none` is right.
Range OnlyIf(bool is_there, Range range, int none = 0) {
  if (!is_there) range.min = range.max = none;
  return range;
}

absl::Status CheckRanges(const SynthOptions& o) {
  const SynthArchitecture& has = o.architecture;
  const Range ranges[] = {
      {"layers", o.num_layers, 1, 4096},
      {"hidden", o.hidden_size, 1, kMaxSize},
      {"vocab", o.vocab_size, MinVocabSize(), kMaxSize},
      {"unused", o.num_unused_tokens, 0, o.vocab_size - MinVocabSize()},
      {"context", o.context_length, 1, 1 << 30},
      {"heads", o.num_heads, 1, 4096},
      {"kv-heads", o.num_kv_heads, 1, 4096},
      {"head-dim", o.head_dim, 1, 4096},
      {"rotary-dims", o.num_rotary_dims, 2, o.head_dim},
      {"experts", o.num_experts, 1, 65535},
      {"top-k", o.top_k, 1, o.num_experts},
      {"expert-hidden", o.expert_hidden_size, 1, kMaxSize},
      {"split", o.num_shards, 1, 99999},
      OnlyIf(has.has_mixers, {"streams", o.num_residual_streams, 2, 64}, 1),
      OnlyIf(has.has_mixers, {"low-rank", o.hc_low_rank, 1, kMaxSize}),
      OnlyIf(has.has_sparse_attention, {"index-heads", o.num_index_heads, 1, 4096}),
      OnlyIf(has.has_sparse_attention, {"index-dim", o.index_head_dim, o.num_rotary_dims, 4096}),
      OnlyIf(has.has_sparse_attention, {"budget", o.budget_tokens, 1, kMaxSize}),
      OnlyIf(has.has_sparse_attention, {"ratio", o.compress_ratio, 0, kCachePageTokens}),
      OnlyIf(has.has_delta_nets, {"interval", o.full_attention_interval, 1, 4096}, 1),
      OnlyIf(has.has_delta_nets, {"key-heads", o.num_key_heads, 1, 4096}),
      OnlyIf(has.has_delta_nets, {"value-heads", o.num_value_heads, 1, 4096}),
      OnlyIf(has.has_delta_nets, {"state", o.delta_head_dim, 1, 4096}),
      OnlyIf(has.has_delta_nets, {"conv-kernel", o.conv_kernel, 1, 64}),
      OnlyIf(has.has_shared_expert,
             {"shared-expert-hidden", o.shared_expert_hidden_size, 1, kMaxSize}),
      OnlyIf(has.has_ngram_embedding, {"ple-layer", o.ple_layer, -1, o.num_layers - 1}, -1),
      OnlyIf(has.has_ngram_embedding, {"ngram", o.ngram_size, 2, 16}),
      OnlyIf(has.has_ngram_embedding, {"heads-per-ngram", o.heads_per_ngram, 1, 1024}),
      OnlyIf(has.has_ngram_embedding, {"ple-conv", o.ple_conv_kernel, 1, 64}),
      OnlyIf(has.has_ngram_embedding, {"ple-rows", o.ple_rows_per_head, 2, 100000000}),
      OnlyIf(has.has_draft_blocks, {"mtp", o.num_mtp_layers, 0, 8}),
  };
  for (const Range& range : ranges) {
    if (range.value >= range.min && range.value <= range.max) continue;
    return InvalidArgument("{} is out of range: {}, allowed: {} to {}", range.name, range.value,
                           range.min, range.max);
  }
  return absl::OkStatus();
}

}  // namespace

bool IsAttentionLayer(const SynthOptions& options, int layer) {
  return (layer + 1) % options.full_attention_interval == 0;
}

int NumPleHeads(const SynthOptions& options) {
  return (options.ngram_size - 1) * options.heads_per_ngram;
}

absl::Status CheckSynthOptions(const SynthOptions& options) {
  SWITCHYARD_RETURN_IF_ERROR(CheckRanges(options));
  if (!(options.router_skew >= 0 && options.router_skew <= kMaxRouterSkew)) {
    return InvalidArgument("router-skew is out of range: {}, allowed: 0 to {}", options.router_skew,
                           kMaxRouterSkew);
  }
  if (options.num_heads % options.num_kv_heads != 0) {
    return InvalidArgument("heads must be a multiple of kv-heads: {}, kv-heads: {}",
                           options.num_heads, options.num_kv_heads);
  }
  if (options.architecture.has_delta_nets && options.num_value_heads % options.num_key_heads != 0) {
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
