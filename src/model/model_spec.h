// Description of a model: its sizes, the kind of each layer, and where each tensor is in the file.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "model/gguf_file.h"

namespace switchyard::model {

// A tensor of the GgufFile that the description was made from; null = the model has none.
using TensorRef = const TensorInfo*;

inline constexpr int kNumVirtualShards = 4;

// Strips that a shard may consist of, at most (below).
inline constexpr int kMaxShardStrips = 16;

// How the columns of a matrix are cut into the four virtual shards whose partial products are
// always added in the same order, however many ranks compute them.
//
// The columns form `num_strips` strips of `strip_columns`; shard i holds columns
// [border[i], border[i + 1]) of every strip. More than one strip only where the columns of one
// group of heads are not adjacent (value heads in tiled order).
struct ColumnShards {
  std::array<int64_t, kNumVirtualShards + 1> border{};
  int num_strips = 1;
  int64_t strip_columns = 0;
  // Ranks are given whole units: adjacent columns (of each strip) that fill whole blocks.
  int64_t unit_columns = 0;

  int64_t num_units() const { return unit_columns == 0 ? 0 : strip_columns / unit_columns; }
};

// Cuts `num_units` units of `unit_columns` into four: shard i holds units floor(i * num_units / 4)
// up to floor((i + 1) * num_units / 4).
ColumnShards CutIntoShards(int64_t num_units, int64_t unit_columns, int num_strips = 1);

// Mixer in front of a sublayer or of the head: collapses the residual streams into one vector. With
// one stream it is a plain RMS norm and has nothing but `norm`.
// Shapes: S = num_residual_streams, H = hidden_size.
struct MixerTensors {
  TensorRef norm = nullptr;    // [S * H]
  TensorRef down = nullptr;    // [hc_low_rank, S * H]
  TensorRef up = nullptr;      // [S * H, hc_low_rank]
  TensorRef inject = nullptr;  // [S, S * H]; none before the head
};

struct AttentionTensors {
  TensorRef query = nullptr;   // [num_heads * head_dim (twice with output gate), H]: per head its
                               // query rows, then its gate rows
  TensorRef key = nullptr;     // [num_kv_heads * head_dim, H]
  TensorRef value = nullptr;   // as key
  TensorRef output = nullptr;  // [H, num_heads * head_dim]
  TensorRef query_norm = nullptr;  // [head_dim]
  TensorRef key_norm = nullptr;    // [head_dim]
  // Indexer of sparse attention. May be there, and unused, in a dense layer.
  TensorRef index_query = nullptr;       // [num_index_heads * index_head_dim, H]
  TensorRef index_key = nullptr;         // [index_head_dim, H]
  TensorRef index_query_norm = nullptr;  // [index_head_dim]
  TensorRef index_key_norm = nullptr;    // [index_head_dim]
};

// Shapes: Hk, Hv = num_key_heads, num_value_heads, D = delta_head_dim.
struct DeltaNetTensors {
  TensorRef qkv = nullptr;         // [2 * Hk * D + Hv * D, H]: rows of q, k, v
  TensorRef gate = nullptr;        // [Hv * D, H]
  TensorRef qkv_gate = nullptr;    // instead of the two: [2 * Hk * D + 2 * Hv * D, H], per key head
                                   // its rows of q, k, v and gate
  TensorRef beta = nullptr;        // [Hv, H]
  TensorRef alpha = nullptr;       // [Hv, H]
  TensorRef beta_alpha = nullptr;  // instead of the two: [2 * Hv, H], per key head its beta rows,
                                   // then its alpha rows
  TensorRef conv =
      nullptr;            // [2 * Hk * D + Hv * D, conv_kernel]; the last tap is the current token
  TensorRef a = nullptr;  // [Hv], negative: -exp(A_log)
  TensorRef dt_bias = nullptr;  // [Hv]
  TensorRef norm = nullptr;     // [D]
  TensorRef output = nullptr;   // [H, Hv * D]
};

// Shapes: E = num_experts, F = expert_hidden_size of the layer, Fs = shared_expert_hidden_size.
struct MoeTensors {
  TensorRef router = nullptr;   // [E, H]
  TensorRef gate = nullptr;     // [E, F, H]
  TensorRef up = nullptr;       // [E, F, H]
  TensorRef gate_up = nullptr;  // instead of the two: [E, 2 * F, H], gate rows, then up rows
  TensorRef down = nullptr;     // [E, H, F]
  TensorRef shared_gate_input = nullptr;  // [H]: the shared expert's own gate
  TensorRef shared_gate = nullptr;        // [Fs, H]
  TensorRef shared_up = nullptr;          // [Fs, H]
  TensorRef shared_down = nullptr;        // [H, Fs]
};

struct PleTensors {
  TensorRef key = nullptr;         // [S * H, H]
  TensorRef value = nullptr;       // [H, H]
  TensorRef norm_key = nullptr;    // [S * H]
  TensorRef norm_query = nullptr;  // [S * H]
  TensorRef norm_conv = nullptr;   // [S * H]
  TensorRef conv = nullptr;        // [S * H, conv_kernel]
};

enum class LayerKind {
  kAttention,  // softmax attention with a KV cache
  kDeltaNet,   // gated delta net with a recurrent state
};

struct LayerSpec {
  LayerKind kind = LayerKind::kAttention;
  MixerTensors mixer;          // before attention or delta net
  AttentionTensors attention;  // of kAttention
  int compress_ratio = 0;      // of kAttention: tokens of one block of sparse attention; 0 = dense
  DeltaNetTensors delta_net;   // of kDeltaNet
  ColumnShards output_shards;  // of attention.output or delta_net.output
  MixerTensors moe_mixer;      // before router and experts
  MoeTensors moe;
  int expert_hidden_size = 0;
  ColumnShards down_shards;
  ColumnShards shared_down_shards;
};

// Softmax attention; the same in every layer that has it.
struct AttentionSpec {
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int num_rotary_dims = 0;  // of each head, the first; pairs (i, i + num_rotary_dims / 2)
  float rope_base = 0;
  bool has_output_gate = false;  // sigmoid, from the second half of each head's query rows
  // Sparse attention (QSA); num_index_heads == 0 = the model has none.
  int num_index_heads = 0;
  int index_head_dim = 0;
  int budget_tokens = 0;  // that one query may read, apart from the incomplete last block
};

enum class ValueHeadOrder {
  kTiled,    // value head v belongs to key head v % num_key_heads
  kGrouped,  // value head v belongs to key head v / (num_value_heads / num_key_heads)
};

enum class GateFunction { kSigmoid, kSilu };

struct DeltaNetSpec {
  int num_key_heads = 0;
  int num_value_heads = 0;
  int head_dim = 0;  // of queries, keys and values
  int conv_kernel = 0;
  ValueHeadOrder value_head_order = ValueHeadOrder::kTiled;
  GateFunction output_gate = GateFunction::kSigmoid;
};

struct MoeSpec {
  int num_experts = 0;
  int top_k = 0;
  int max_expert_hidden_size = 0;     // over all layers
  int shared_expert_hidden_size = 0;  // 0 = no shared expert
};

// N-gram embedding, added to the residual before one layer.
struct PleSpec {
  int layer = 0;
  int ngram_size = 0;       // longest n-gram, in tokens; also the dilation of the convolution
  int heads_per_ngram = 0;  // for each length from 2 to ngram_size
  int conv_kernel = 0;
  int row_width = 0;                       // values of one row of the table
  int32_t eos_token_id = 0;                // separator: n-grams do not reach over it
  std::optional<int32_t> image_token_id;   // hashed at image positions; else eos_token_id
  std::vector<uint64_t> multipliers;       // [ngram_size]
  std::vector<uint64_t> head_vocab_sizes;  // [num_heads()]: rows of each head
  std::vector<uint64_t> head_offsets;      // [num_heads()]: first row of each head
  TensorRef table = nullptr;               // [rows, row_width]; gathered from, never resident
  PleTensors tensors;

  int num_heads() const { return (ngram_size - 1) * heads_per_ngram; }
};

// Everything that the engine knows about a model. Plain data; made by LoadModelSpec() and not
// changed afterwards. Tensor types (formats) are those of each tensor: they differ between layers.
//
// Tensor references point into the GgufFile, which must outlive the description.
struct ModelSpec {
  std::string architecture;   // "qwen4exp"
  std::string name;           // as the file calls itself; may be empty
  std::string pre_tokenizer;  // "qwen35"; empty if the file has no tokenizer

  int num_layers = 0;  // of the trunk, without draft blocks
  int hidden_size = 0;
  int vocab_size = 0;  // rows of the embedding, padding included
  int64_t context_length = 0;
  float rms_epsilon = 0;

  int num_residual_streams = 1;
  int hc_low_rank = 0;  // of the mixers; 0 with one stream

  AttentionSpec attention;
  std::optional<DeltaNetSpec> delta_net;
  MoeSpec moe;
  std::optional<PleSpec> ple;

  TensorRef token_embedding = nullptr;  // [vocab_size, H]
  TensorRef output = nullptr;           // [vocab_size, H]; == token_embedding if tied
  MixerTensors final_mixer;             // before the head; without inject
  std::vector<LayerSpec> layers;        // [num_layers]

  // Draft (multi-token prediction) blocks: known to be there, not used.
  int num_mtp_layers = 0;
  std::vector<TensorRef> mtp_tensors;

  bool is_output_tied() const { return output == token_embedding; }
  bool has_sparse_attention() const { return attention.num_index_heads > 0; }
};

// Describes the model in `file`.
//
// Errors: kInvalidArgument, naming file, key or tensor, and offset: unknown architecture (with the
//         list of known ones), missing or contradictory metadata, a tensor that is missing, has
//         another shape than the metadata say, or that the architecture does not know.
absl::StatusOr<ModelSpec> LoadModelSpec(const GgufFile& file);

}  // namespace switchyard::model
