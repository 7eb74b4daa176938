// Random small layers and the states of sequences, for tests of any kernels::Backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/tensor_view.h"
#include "kernels/backend.h"
#include "kernels/stage_types.h"
#include "testing/tensor_data.h"

namespace switchyard::fixtures {

// ---- weights --------------------------------------------------------------------------------

// Loads a tensor; aborts when the backend refuses it.
std::unique_ptr<kernels::Weight> Load(kernels::Backend& backend, const TensorData& tensor,
                                      kernels::WeightUse use);

// Borders of the four virtual shards of `cols` columns in units of `unit` columns: shard i holds
// units floor(i m / 4) up to floor((i + 1) m / 4).
kernels::ShardBorders Shards(int64_t cols, int64_t unit);

// ---- layers ---------------------------------------------------------------------------------

// Sizes of a small layer of every kind; tests change what they are about.
struct LayerSizes {
  DType matrix_type = DType::kF32;  // of every matrix; vectors are F32
  int hidden_size = 64;
  int num_streams = 4;
  int hc_low_rank = 32;
  float rms_epsilon = 1e-6f;

  int num_key_heads = 2;
  int num_value_heads = 6;
  int delta_head_dim = 32;
  int conv_kernel = 4;
  bool tiled_heads = true;
  bool silu_gate = false;

  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 32;
  int num_rotary_dims = 16;
  float rope_base = 1e7f;
  bool output_gate = true;
  int num_index_heads = 8;
  int index_head_dim = 32;
  int qsa_ratio = 4;    // 0 = dense layers
  int qsa_budget = 16;  // tokens

  int num_experts = 12;
  int top_k = 3;
  int expert_hidden_size = 160;        // five units of 32: shards of unequal width
  int shared_expert_hidden_size = 96;  // three units: an empty shard; 0 = no shared expert
  bool fused_gate_up = false;

  int ple_row_size = 128;
  int ple_conv_kernel = 4;
  int ple_dilation = 3;

  int delta_channels() const { return (2 * num_key_heads + num_value_heads) * delta_head_dim; }
  kernels::DeltaNetShape delta_shape() const;
  kernels::AttentionShape attention_shape() const;
  kernels::PleShape ple_shape() const;
  kernels::StepLimits limits(int64_t max_rows, int64_t max_sequences, int64_t max_context) const;
};

// Tensors of a layer, in the order and with the meaning of kernels::MixerWeights and so on. An
// empty tensor (rows == 0) is one that the model does not have.
struct MixerTensors {
  TensorData norm, down, up, inject;
};
struct PleTensors {
  TensorData key, value, norm_key, norm_query, norm_conv, conv;
};
struct DeltaNetTensors {
  TensorData qkv, gate, beta, alpha, conv, a, dt_bias, norm, output;
};
struct AttentionTensors {
  TensorData query, key, value, query_norm, key_norm;
  TensorData index_query, index_key, index_query_norm, index_key_norm;
};
struct MoeTensors {
  TensorData router;
  TensorData gate, up, gate_up, down, shared_gate_input, shared_gate, shared_up, shared_down;
};

MixerTensors RandomMixer(Random& random, const LayerSizes& sizes);
PleTensors RandomPle(Random& random, const LayerSizes& sizes);
DeltaNetTensors RandomDeltaNet(Random& random, const LayerSizes& sizes);
AttentionTensors RandomAttention(Random& random, const LayerSizes& sizes);
MoeTensors RandomMoe(Random& random, const LayerSizes& sizes);

// Weights of a layer with their owners.
template <typename Weights>
struct Loaded {
  Weights weights;
  std::vector<std::unique_ptr<kernels::Weight>> owners;
};

Loaded<kernels::MixerWeights> Load(kernels::Backend& backend, const LayerSizes& sizes,
                                   const MixerTensors& tensors);
Loaded<kernels::PleWeights> Load(kernels::Backend& backend, const LayerSizes& sizes,
                                 const PleTensors& tensors);
Loaded<kernels::DeltaNetWeights> Load(kernels::Backend& backend, const LayerSizes& sizes,
                                      const DeltaNetTensors& tensors);
Loaded<kernels::AttentionWeights> Load(kernels::Backend& backend, const LayerSizes& sizes,
                                       const AttentionTensors& tensors);
Loaded<kernels::MoeWeights> Load(kernels::Backend& backend, const LayerSizes& sizes,
                                 const MoeTensors& tensors);  // without `router`

// ---- rows of activations --------------------------------------------------------------------

template <typename T>
struct Rows {
  Rows(int64_t rows, int64_t cols) : cols(cols), values(static_cast<size_t>(rows * cols)) {}
  // Not a constructor: {} and {1} would make one of sizes.
  static Rows Of(int64_t cols, std::vector<T> values) {
    Rows rows(0, cols);
    rows.values = std::move(values);
    return rows;
  }
  int64_t rows() const { return static_cast<int64_t>(values.size()) / cols; }
  MatrixView<T> view() { return {values.data(), rows(), cols}; }
  MatrixView<const T> view() const { return {values.data(), rows(), cols}; }
  std::vector<T> Row(int64_t r) const {
    return {values.begin() + r * cols, values.begin() + (r + 1) * cols};
  }

  int64_t cols;
  std::vector<T> values;
};
using FloatRows = Rows<float>;

FloatRows RandomRows(Random& random, int64_t rows, int64_t cols, double deviation = 1);

// ---- states of sequences --------------------------------------------------------------------

// Position of a sequence and the description of its rows in the next step. Call order: Next(), the
// stage, Accept(), and again.
class SequenceCursor {
 public:
  int64_t position() const { return position_; }

  // Rows [row_begin, row_begin + num_rows) of a step, the first `num_committed` of them final.
  kernels::SequenceRows Next(int row_begin, int num_rows, int num_committed);
  kernels::SequenceRows Next(int row_begin, int num_rows) {
    return Next(row_begin, num_rows, num_rows);
  }
  // Keeps `num_accepted` of the rows after the committed ones and rejects the others.
  void Accept(int num_accepted);

 private:
  int64_t position_ = 0;
  int num_replay_ = 0;
  kernels::SequenceRows rows_;
};

struct DeltaNetState {
  explicit DeltaNetState(const LayerSizes& sizes);
  kernels::DeltaNetSequence Sequence(const kernels::SequenceRows& rows);

  std::vector<float> state, tail, pending, pending_gates;
};

struct PleState {
  explicit PleState(const LayerSizes& sizes);
  kernels::ConvSequence Sequence(const kernels::SequenceRows& rows);

  std::vector<float> tail, pending;
};

// Pages of one attention layer for several sequences, handed out in a scrambled order.
class KvPages {
 public:
  KvPages(const LayerSizes& sizes, kernels::KvType type, int num_pages, uint64_t seed = 1);
  kernels::KvLayer layer();
  // Page numbers for `num_tokens` tokens. REQUIRES: as many pages are left.
  std::vector<int32_t> Take(int64_t num_tokens);

 private:
  kernels::KvType type_;
  std::vector<std::byte> keys_, values_, block_keys_;
  std::vector<int32_t> free_;
};

struct AttentionState {
  AttentionState(const LayerSizes& sizes, KvPages& pages, int64_t max_tokens);
  kernels::AttentionSequence Sequence(const kernels::SequenceRows& rows);

  std::vector<int32_t> pages;
  std::vector<float> index_ring;
};

// One step of a sequence whose last rows may be rejected.
struct Window {
  int num_rows = 0;
  int num_committed = 0;
  int num_accepted = 0;  // of the num_rows - num_committed rows after them
};

// Windows of 1 to kMaxProvisionalRows + 1 rows that together keep `num_rows` rows: every number of
// committed and accepted rows occurs, nothing accepted and everything accepted often.
std::vector<Window> RandomWindows(Random& random, int num_rows);

// Feeds the rows of `input` to step() in these windows, with noise as the rejected rows, and
// returns what came out for the kept ones. A last step without rows replays what is still pending.
FloatRows RunWindows(
    const std::vector<Window>& windows, const FloatRows& input, Random& random,
    const std::function<FloatRows(const kernels::SequenceRows&, const FloatRows&)>& step);

}  // namespace switchyard::fixtures
