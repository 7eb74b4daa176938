// Argument types of the backend's stages: weights of a layer, shapes, caches and sequences.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "base/dtype.h"
#include "base/tensor_view.h"

namespace switchyard::kernels {

// Tokens of one cache page. Equal to the alignment of prefill chunks and checkpoints, so a shared
// page is always full and is never written again.
inline constexpr int kPageTokens = 64;

// Rows of one sequence and step that may be rejected later (draft tokens), at most.
inline constexpr int kMaxProvisionalRows = 15;

// ---- memory ---------------------------------------------------------------------------------

// A weight in the layout of the backend that loaded it; only that backend looks inside.
class Weight {
 public:
  virtual ~Weight() = default;
  DType dtype() const { return dtype_; }
  int64_t num_slabs() const { return num_slabs_; }
  // Slabs that the fast tier has room for; as many as there are without tiers.
  int64_t num_slots() const { return num_slots_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t resident_bytes() const { return resident_bytes_; }

 protected:
  Weight(DType dtype, int64_t num_slabs, int64_t rows, int64_t cols)
      : dtype_(dtype), num_slabs_(num_slabs), rows_(rows), cols_(cols), num_slots_(num_slabs) {}
  DType dtype_;  // in the file
  int64_t num_slabs_, rows_, cols_;
  int64_t num_slots_;
  int64_t resident_bytes_ = 0;
};

enum class WeightUse {
  kMatrix,    // multiplied with rows of activations; one slab per expert
  kVector,    // norms, biases and other small tensors: kept as F32, also multiplied with rows
  kConvTaps,  // [channels, taps] of a causal depthwise convolution: kept as F32
  kRowTable   // rows are looked up by index (token embedding); may also be multiplied with
};

struct WeightSource {
  std::string name;
  TensorView view;  // type and shape; `data` is not used when `read` is set
  // Reads `count` whole rows, from row `first` of the flattened [num_slabs * rows] rows on. Several
  // threads may call it at once.
  std::function<absl::Status(int64_t first, int64_t count, std::byte* out)> read;
  // Set: the tensor has tiers. The fast one has room for this many slabs and is empty at first
  // (Backend::LoadSlab() fills it); slabs that are not in it are computed from what `read` returns.
  // `read` is then kept as long as the weight, and called by stages.
  std::optional<int64_t> num_slots{};
};

// A tensor that will be loaded.
struct WeightRequest {
  TensorView view;  // type and shape
  WeightUse use = WeightUse::kMatrix;
  std::optional<int64_t> num_slots{};  // as WeightSource
};

// Device memory that frees itself.
class Buffer {
 public:
  virtual ~Buffer() = default;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 protected:
  Buffer(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  int64_t bytes_;
};

// Largest values of a step, for workspaces.
struct StepLimits {
  int64_t max_rows = 0;       // T
  int64_t max_sequences = 0;  // sequences in one step
  int64_t max_context = 0;    // tokens of one sequence
  int64_t hidden_size = 0;
  int64_t num_streams = 1;
  int64_t hc_low_rank = 0;
  // Widest output row of any matrix but the head, and widest input row of any matrix.
  int64_t max_inner_size = 0;
  int64_t vocab_size = 0;
  int64_t num_experts = 0;
  int64_t top_k = 0;
  int64_t expert_hidden_size = 0;
  int64_t shared_expert_hidden_size = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t num_index_heads = 0;
  int64_t index_head_dim = 0;
  int64_t qsa_budget_blocks = 0;  // largest budget / ratio of any layer
  int64_t min_qsa_ratio = 0;      // smallest non-zero ratio, 0 = no such layer
  int64_t num_key_heads = 0;      // delta net
  int64_t num_value_heads = 0;
  int64_t delta_head_dim = 0;
  int64_t delta_conv_kernel = 0;
  int64_t ple_row_size = 0;  // values gathered per token, 0 = no table
  int64_t ple_conv_kernel = 0;
  int64_t ple_dilation = 0;
};

// Columns of the four virtual shards of a matrix. The columns form `num_strips` strips of
// `strip_columns` each (one strip of all columns is written as 1 and 0); shard i holds columns
// [border[i], border[i + 1]) of every strip. More than one strip only where the columns of a group
// of heads are not adjacent. A shard's partial product is the sum of the products of its strips,
// in order.
struct ShardBorders {
  std::array<int64_t, 5> border{};
  int num_strips = 1;
  int64_t strip_columns = 0;
};

// ---- weights of a layer; null = the model has no such tensor --------------------------------

struct MixerWeights {
  const Weight* norm = nullptr;    // [S * hidden_size]
  const Weight* down = nullptr;    // [low rank, S * hidden_size]
  const Weight* up = nullptr;      // [S * hidden_size, low rank]
  const Weight* inject = nullptr;  // [S, S * hidden_size]
  float rms_epsilon = 0;
  int num_streams = 1;  // S
};

struct PleWeights {
  const Weight* key = nullptr;         // [S * hidden_size, e size]
  const Weight* value = nullptr;       // [hidden_size, e size]
  const Weight* norm_key = nullptr;    // [S * hidden_size]
  const Weight* norm_query = nullptr;  // [S * hidden_size]
  const Weight* norm_conv = nullptr;   // [S * hidden_size]
  const Weight* conv = nullptr;        // [S * hidden_size, conv_kernel]
};

struct PleShape {
  int num_streams = 4;
  int conv_kernel = 4;
  int dilation = 3;
  float rms_epsilon = 0;
};

struct DeltaNetWeights {
  const Weight* qkv = nullptr;      // [2 * Hk * D + Hv * D, hidden_size]: q, k, v
  const Weight* gate = nullptr;     // [Hv * D, hidden_size]
  const Weight* beta = nullptr;     // [Hv, hidden_size]
  const Weight* alpha = nullptr;    // [Hv, hidden_size]
  const Weight* conv = nullptr;     // [2 * Hk * D + Hv * D, conv_kernel]; last tap = current token
  const Weight* a = nullptr;        // [Hv], negative
  const Weight* dt_bias = nullptr;  // [Hv]
  const Weight* norm = nullptr;     // [D]
  const Weight* output = nullptr;   // [hidden_size, Hv * D]
  ShardBorders output_shards;
};

struct DeltaNetShape {
  int num_key_heads = 0;    // Hk
  int num_value_heads = 0;  // Hv
  int head_dim = 0;         // D, of keys and values
  int conv_kernel = 4;
  bool tiled_heads = true;  // value head v uses key head v % Hk; else v / (Hv / Hk)
  bool silu_gate = false;   // output gate is SiLU; else sigmoid
  float rms_epsilon = 0;
};

struct AttentionWeights {
  const Weight* query = nullptr;  // [num_heads * (2 with output gate) * head_dim, hidden_size]:
                                  // per head its query rows, then its gate rows
  const Weight* key = nullptr;    // [num_kv_heads * head_dim, hidden_size]
  const Weight* value = nullptr;  // as key
  const Weight* query_norm = nullptr;        // [head_dim]
  const Weight* key_norm = nullptr;          // [head_dim]
  const Weight* index_query = nullptr;       // [num_index_heads * index_head_dim, hidden_size]
  const Weight* index_key = nullptr;         // [index_head_dim, hidden_size]
  const Weight* index_query_norm = nullptr;  // [index_head_dim]
  const Weight* index_key_norm = nullptr;    // [index_head_dim]
};

struct AttentionShape {
  int num_heads = 0;
  int num_kv_heads = 0;
  // Query heads that share a kv head; 0 = num_heads / num_kv_heads. A rank may have some of the
  // heads only: its first kv head's first `head_offset` query heads are then elsewhere, and the
  // last kv head's may be incomplete, too.
  int kv_group_size = 0;
  int head_offset = 0;
  int head_dim = 0;
  int num_rotary_dims = 0;  // pairs (i, i + num_rotary_dims / 2) of the first dims are rotated
  float rope_base = 0;
  float rms_epsilon = 0;
  bool output_gate = true;
  int num_index_heads = 0;
  int index_head_dim = 0;
  int qsa_ratio = 0;   // tokens of a block; 0 = dense layer
  int qsa_budget = 0;  // tokens

  int group_size() const { return kv_group_size != 0 ? kv_group_size : num_heads / num_kv_heads; }
  // Query heads [first, end) read this kv head.
  int first_head_of(int kv_head) const {
    const int first = kv_head * group_size() - head_offset;
    return first > 0 ? first : 0;
  }
  int end_head_of(int kv_head) const {
    const int end = (kv_head + 1) * group_size() - head_offset;
    return end < num_heads ? end : num_heads;
  }
};

struct MoeWeights {
  const Weight* gate = nullptr;               // [num_experts][expert_hidden_size, hidden_size]
  const Weight* up = nullptr;                 // as gate
  const Weight* gate_up = nullptr;            // instead of the two: gate rows, then up rows
  const Weight* down = nullptr;               // [num_experts][hidden_size, expert_hidden_size]
  const Weight* shared_gate_input = nullptr;  // [hidden_size]
  const Weight* shared_gate = nullptr;        // [shared_expert_hidden_size, hidden_size]
  const Weight* shared_up = nullptr;
  const Weight* shared_down = nullptr;  // [hidden_size, shared_expert_hidden_size]
  ShardBorders down_shards;
  ShardBorders shared_down_shards;
  // Slab of each expert in the matrices above, [num_experts]; -1 = the expert is not computed here
  // and adds nothing. Empty = the slab is the id.
  absl::Span<const int32_t> expert_slots;
  // Of a step; in memory of the backend (the host's on a CPU).
  // Where the experts' tensors have tiers: slot of each expert in the fast one, -1 = computed from
  // its slab in the slow one; [num_experts]. Empty = no tiers.
  absl::Span<const int32_t> resident_slots;
  // Grows by the rows that each expert computes here, [num_experts]; null = nobody counts.
  uint32_t* use_counts = nullptr;

  int64_t num_experts() const {
    return expert_slots.empty() ? down->num_slabs() : static_cast<int64_t>(expert_slots.size());
  }
  int64_t slot_of(int64_t expert) const {
    return expert_slots.empty() ? expert : expert_slots[static_cast<size_t>(expert)];
  }
};

// ---- sequences of a step and their state ----------------------------------------------------

// Rows of one sequence in a step. State that cannot be rolled back (recurrent state, convolution
// tails) is kept at the last committed row; inputs of the rows after it wait as *pending* rows.
//   1. The first `num_replay` pending rows were accepted: they are applied to the state.
//   2. The step's rows are computed on top. The first `num_committed` of them enter the state;
//      the inputs of the others become the new pending rows.
// num_replay > 0 or num_committed < num_rows only when drafts are verified.
struct SequenceRows {
  int row_begin = 0;
  int num_rows = 0;
  int64_t first_position = 0;
  int num_replay = 0;
  int num_committed = 0;  // of num_rows
};

struct ConvSequence : SequenceRows {
  float* tail = nullptr;     // [(conv_kernel - 1) * dilation, channels], oldest first
  float* pending = nullptr;  // [kMaxProvisionalRows, channels]
};

// The delta rule runs in its chunked form on segments of at least kDeltaChunkMinRows rows and as a
// recurrence on shorter ones; segments end at absolute multiples of kPageTokens. So the result
// depends on where chunks of 64 begin, never on how many of them share a step.
inline constexpr int kDeltaChunkMinRows = 17;  // above kMaxProvisionalRows + 1: drafts recur

struct DeltaNetSequence : SequenceRows {
  float* state = nullptr;          // [Hv, D value, D key]
  float* tail = nullptr;           // [conv_kernel - 1, channels], inputs before the convolution
  float* pending = nullptr;        // [kMaxProvisionalRows, channels]
  float* pending_gates = nullptr;  // [kMaxProvisionalRows, 2 * Hv]: beta, log decay
};

enum class KvType { kF32, kF16, kQ8_0 };

// Cache of one attention layer. A page holds kPageTokens tokens:
//   keys and values [num_pages][num_kv_heads][kPageTokens][head_dim] of `type`;
//   block_keys [num_pages][kPageTokens / ratio][index_head_dim], F16, or F32 with F32 keys.
struct KvLayer {
  KvType type = KvType::kF16;
  std::byte* keys = nullptr;
  std::byte* values = nullptr;
  std::byte* block_keys = nullptr;
};

struct AttentionSequence : SequenceRows {
  absl::Span<const int32_t> pages;  // token t is in page pages[t / kPageTokens]
  // Raw index keys of the newest tokens: token t at row t % kIndexRing, [kIndexRing, dim]. Enough
  // for the incomplete block and the rows that may be rejected.
  float* index_ring = nullptr;
};

// A power of two above the largest ratio (64) plus kMaxProvisionalRows.
inline constexpr int kIndexRing = 128;

struct AttentionInputs {
  MatrixView<float> query;
  MatrixView<float> gate;         // empty without output gate
  MatrixView<float> index_query;  // empty for dense layers
};

struct QsaSelection {
  MatrixView<int32_t> blocks;
  absl::Span<int32_t> counts;
};

}  // namespace switchyard::kernels
