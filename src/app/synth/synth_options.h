// What a synthetic model is to look like.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace switchyard::app {

// What sets an architecture apart from others, beside its sizes. The values here are those of
// qwen4exp. What an architecture does not have has the size 0 (-1 for the layer of the n-gram
// embedding, 1 for residual streams and interval).
struct SynthArchitecture {
  std::string name = "qwen4exp";
  std::string pre_tokenizer = "qwen35";
  double rope_base = 1e7;
  bool has_rope_sections = true;  // rotation that is interleaved over axes
  bool has_mixers = true;         // between residual streams; else a norm before each sublayer
  std::string moe_norm;           // without mixers: name of the norm before the experts
  bool has_output_gate = true;    // of attention
  bool has_sparse_attention = true;
  bool has_delta_nets = true;
  bool fused_beta_alpha = false;  // one tensor for both
  bool has_shared_expert = true;
  bool has_ngram_embedding = true;
  bool has_draft_blocks = true;
};

// Sizes of a model and how it is written. The values here are those of the preset "tiny" of
// qwen4exp: a model of half a megabyte that has every part of the architecture.
struct SynthOptions {
  SynthArchitecture architecture;
  uint64_t seed = 1;

  int num_layers = 4;
  int hidden_size = 64;
  int vocab_size = 512;             // rows, unused ones included
  int num_unused_tokens = 16;       // rows at the end that no text maps to
  int context_length = 4096;        // tokens
  int full_attention_interval = 4;  // every n-th layer is attention, the others delta net
  int num_residual_streams = 4;
  int hc_low_rank = 16;

  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 32;
  int num_rotary_dims = 16;
  int num_index_heads = 4;
  int index_head_dim = 32;
  int budget_tokens = 64;  // that one query of sparse attention reads
  int compress_ratio = 4;  // tokens of one block; 0 = dense attention

  int num_key_heads = 2;
  int num_value_heads = 6;
  int delta_head_dim = 16;
  int conv_kernel = 4;

  int num_experts = 8;
  int top_k = 4;
  int expert_hidden_size = 32;
  int shared_expert_hidden_size = 32;
  bool fused_gate_up = false;  // one tensor for gate and up of the routed experts

  int ple_layer = 1;  // -1 = no n-gram embedding
  int ngram_size = 3;
  int heads_per_ngram = 4;
  int ple_conv_kernel = 4;
  int ple_rows_per_head = 211;  // each head gets the next prime from here on

  int num_mtp_layers = 0;
  bool tied_output = false;  // no output matrix of its own

  // Types of the tensors, see TypeRules.
  std::string types = "f32";
  std::string gate_up_type;  // empty = as `types` says; also below
  std::string down_type;
  std::string dense_type;

  // Exponent of the popularity of experts (Zipf); 0 = all are alike.
  double router_skew = 0;

  int num_shards = 1;   // files; the first of several holds no tensors
  bool sparse = false;  // leave the tensor data out: holes that read as zeros
};

// Checks what a loader would refuse, before anything is written.
// Errors: kInvalidArgument, naming the value and what it may be.
absl::Status CheckSynthOptions(const SynthOptions& options);

// Whether layer `layer` is attention. REQUIRES: 0 <= layer < num_layers.
bool IsAttentionLayer(const SynthOptions& options, int layer);

// Heads of the n-gram embedding. REQUIRES: ple_layer >= 0.
int NumPleHeads(const SynthOptions& options);

}  // namespace switchyard::app
