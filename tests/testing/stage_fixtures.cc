#include "testing/stage_fixtures.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/kv_layout.h"

namespace switchyard::fixtures {
namespace {

using kernels::kIndexRing;
using kernels::kMaxProvisionalRows;
using kernels::kPageTokens;
using kernels::WeightUse;

// A matrix whose products keep the size of their input: deviation 1 / sqrt(cols).
TensorData RandomMatrix(Random& random, const LayerSizes& sizes, std::string name, int64_t rows,
                        int64_t cols, int64_t num_slabs = 1) {
  const double deviation = 1 / std::sqrt(static_cast<double>(cols));
  return Encode(std::move(name), random.Normals(num_slabs * rows * cols, deviation), num_slabs,
                rows, cols, sizes.matrix_type);
}

TensorData RandomVector(Random& random, std::string name, int64_t size, double mean,
                        double deviation) {
  return Encode(std::move(name), random.Normals(size, deviation, mean), 1, 1, size);
}

// Loads tensors into one layer's owners.
class Loader {
 public:
  Loader(kernels::Backend& backend, std::vector<std::unique_ptr<kernels::Weight>>& owners)
      : backend_(backend), owners_(owners) {}

  const kernels::Weight* Matrix(const TensorData& tensor) {
    return Add(tensor, WeightUse::kMatrix);
  }
  const kernels::Weight* Vector(const TensorData& tensor) {
    return Add(tensor, WeightUse::kVector);
  }
  const kernels::Weight* ConvTaps(const TensorData& tensor) {
    return Add(tensor, WeightUse::kConvTaps);
  }

 private:
  const kernels::Weight* Add(const TensorData& tensor, WeightUse use) {
    if (tensor.rows == 0) return nullptr;
    owners_.push_back(Load(backend_, tensor, use));
    return owners_.back().get();
  }

  kernels::Backend& backend_;
  std::vector<std::unique_ptr<kernels::Weight>>& owners_;
};

}  // namespace

// ---- weights --------------------------------------------------------------------------------

std::unique_ptr<kernels::Weight> Load(kernels::Backend& backend, const TensorData& tensor,
                                      WeightUse use) {
  kernels::WeightSource source{tensor.name, tensor.view(), nullptr};
  source.read = [&tensor](int64_t first, int64_t count, std::byte* out) {
    const int64_t row_bytes = tensor.view().row_bytes();
    SWITCHYARD_CHECK(first >= 0 && first + count <= tensor.num_slabs * tensor.rows);
    std::memcpy(out, tensor.bytes.data() + first * row_bytes,
                static_cast<size_t>(count * row_bytes));
    return absl::OkStatus();
  };
  absl::StatusOr<std::unique_ptr<kernels::Weight>> weight = backend.LoadWeight(source, use);
  SWITCHYARD_CHECK(weight.ok());
  return std::move(weight).value();
}

kernels::ShardBorders Shards(int64_t cols, int64_t unit) {
  SWITCHYARD_CHECK(cols % unit == 0);
  kernels::ShardBorders borders;
  for (int64_t i = 0; i <= 4; ++i) {
    borders.border[static_cast<size_t>(i)] = i * (cols / unit) / 4 * unit;
  }
  return borders;
}

// ---- layers ---------------------------------------------------------------------------------

kernels::DeltaNetShape LayerSizes::delta_shape() const {
  kernels::DeltaNetShape shape;
  shape.num_key_heads = num_key_heads;
  shape.num_value_heads = num_value_heads;
  shape.head_dim = delta_head_dim;
  shape.conv_kernel = conv_kernel;
  shape.tiled_heads = tiled_heads;
  shape.silu_gate = silu_gate;
  shape.rms_epsilon = rms_epsilon;
  return shape;
}

kernels::AttentionShape LayerSizes::attention_shape() const {
  kernels::AttentionShape shape;
  shape.num_heads = num_heads;
  shape.num_kv_heads = num_kv_heads;
  shape.head_dim = head_dim;
  shape.num_rotary_dims = num_rotary_dims;
  shape.rope_base = rope_base;
  shape.rms_epsilon = rms_epsilon;
  shape.output_gate = output_gate;
  if (qsa_ratio == 0) return shape;
  shape.num_index_heads = num_index_heads;
  shape.index_head_dim = index_head_dim;
  shape.qsa_ratio = qsa_ratio;
  shape.qsa_budget = qsa_budget;
  return shape;
}

kernels::PleShape LayerSizes::ple_shape() const {
  kernels::PleShape shape;
  shape.num_streams = num_streams;
  shape.conv_kernel = ple_conv_kernel;
  shape.dilation = ple_dilation;
  shape.rms_epsilon = rms_epsilon;
  return shape;
}

kernels::StepLimits LayerSizes::limits(int64_t max_rows, int64_t max_sequences,
                                       int64_t max_context) const {
  kernels::StepLimits limits;
  limits.max_rows = max_rows;
  limits.max_sequences = max_sequences;
  limits.max_context = max_context;
  limits.hidden_size = hidden_size;
  limits.num_streams = num_streams;
  limits.hc_low_rank = hc_low_rank;
  limits.max_inner_size =
      std::max({num_streams * hidden_size, delta_channels(), num_value_heads * delta_head_dim,
                num_heads * head_dim * (output_gate ? 2 : 1), num_index_heads * index_head_dim,
                2 * expert_hidden_size, shared_expert_hidden_size, num_experts});
  limits.vocab_size = 512;
  limits.num_experts = num_experts;
  limits.top_k = top_k;
  limits.expert_hidden_size = expert_hidden_size;
  limits.shared_expert_hidden_size = shared_expert_hidden_size;
  limits.num_heads = num_heads;
  limits.head_dim = head_dim;
  limits.num_index_heads = qsa_ratio == 0 ? 0 : num_index_heads;
  limits.index_head_dim = qsa_ratio == 0 ? 0 : index_head_dim;
  limits.qsa_budget_blocks = qsa_ratio == 0 ? 0 : qsa_budget / qsa_ratio;
  limits.min_qsa_ratio = qsa_ratio;
  limits.num_key_heads = num_key_heads;
  limits.num_value_heads = num_value_heads;
  limits.delta_head_dim = delta_head_dim;
  limits.delta_conv_kernel = conv_kernel;
  limits.ple_row_size = ple_row_size;
  limits.ple_conv_kernel = ple_conv_kernel;
  limits.ple_dilation = ple_dilation;
  return limits;
}

MixerTensors RandomMixer(Random& random, const LayerSizes& sizes) {
  const int64_t wide = int64_t{sizes.num_streams} * sizes.hidden_size;
  MixerTensors tensors;
  tensors.norm = RandomVector(random, "norm", wide, 1, 0.2);
  if (sizes.num_streams == 1) return tensors;
  tensors.down = RandomMatrix(random, sizes, "down", sizes.hc_low_rank, wide);
  tensors.up = RandomMatrix(random, sizes, "up", wide, sizes.hc_low_rank);
  tensors.inject = RandomMatrix(random, sizes, "inject", sizes.num_streams, wide);
  return tensors;
}

PleTensors RandomPle(Random& random, const LayerSizes& sizes) {
  const int64_t wide = int64_t{sizes.num_streams} * sizes.hidden_size;
  PleTensors tensors;
  tensors.key = RandomMatrix(random, sizes, "key", wide, sizes.ple_row_size);
  tensors.value = RandomMatrix(random, sizes, "value", sizes.hidden_size, sizes.ple_row_size);
  tensors.norm_key = RandomVector(random, "norm_key", wide, 1, 0.2);
  tensors.norm_query = RandomVector(random, "norm_query", wide, 1, 0.2);
  tensors.norm_conv = RandomVector(random, "norm_conv", wide, 1, 0.2);
  tensors.conv = Encode("conv", random.Normals(wide * sizes.ple_conv_kernel, 0.5), 1, wide,
                        sizes.ple_conv_kernel);
  return tensors;
}

DeltaNetTensors RandomDeltaNet(Random& random, const LayerSizes& sizes) {
  const int64_t channels = sizes.delta_channels(), hidden = sizes.hidden_size;
  const int64_t values = int64_t{sizes.num_value_heads} * sizes.delta_head_dim;
  DeltaNetTensors tensors;
  tensors.qkv = RandomMatrix(random, sizes, "qkv", channels, hidden);
  tensors.gate = RandomMatrix(random, sizes, "gate", values, hidden);
  tensors.beta = RandomMatrix(random, sizes, "beta", sizes.num_value_heads, hidden);
  tensors.alpha = RandomMatrix(random, sizes, "alpha", sizes.num_value_heads, hidden);
  tensors.conv = Encode("conv", random.Normals(channels * sizes.conv_kernel, 0.5), 1, channels,
                        sizes.conv_kernel);
  // Decays exp(a softplus(..)) between about 0.2 and 0.99, so that states remember and forget.
  std::vector<float> a(static_cast<size_t>(sizes.num_value_heads));
  for (float& value : a) value = static_cast<float>(-std::exp(-3 + 3 * random.Uniform()));
  tensors.a = Encode("a", a, 1, 1, sizes.num_value_heads);
  tensors.dt_bias = RandomVector(random, "dt_bias", sizes.num_value_heads, 0, 1);
  tensors.norm = RandomVector(random, "norm", sizes.delta_head_dim, 1, 0.2);
  tensors.output = RandomMatrix(random, sizes, "output", hidden, values);
  return tensors;
}

AttentionTensors RandomAttention(Random& random, const LayerSizes& sizes) {
  const int64_t hidden = sizes.hidden_size, keys = int64_t{sizes.num_kv_heads} * sizes.head_dim;
  AttentionTensors tensors;
  tensors.query =
      RandomMatrix(random, sizes, "query",
                   int64_t{sizes.num_heads} * sizes.head_dim * (sizes.output_gate ? 2 : 1), hidden);
  tensors.key = RandomMatrix(random, sizes, "key", keys, hidden);
  tensors.value = RandomMatrix(random, sizes, "value", keys, hidden);
  tensors.query_norm = RandomVector(random, "query_norm", sizes.head_dim, 1, 0.2);
  tensors.key_norm = RandomVector(random, "key_norm", sizes.head_dim, 1, 0.2);
  if (sizes.qsa_ratio == 0) return tensors;
  tensors.index_query = RandomMatrix(random, sizes, "index_query",
                                     int64_t{sizes.num_index_heads} * sizes.index_head_dim, hidden);
  tensors.index_key = RandomMatrix(random, sizes, "index_key", sizes.index_head_dim, hidden);
  tensors.index_query_norm = RandomVector(random, "index_query_norm", sizes.index_head_dim, 1, 0.2);
  tensors.index_key_norm = RandomVector(random, "index_key_norm", sizes.index_head_dim, 1, 0.2);
  return tensors;
}

MoeTensors RandomMoe(Random& random, const LayerSizes& sizes) {
  const int64_t hidden = sizes.hidden_size, inner = sizes.expert_hidden_size;
  const int64_t shared = sizes.shared_expert_hidden_size, experts = sizes.num_experts;
  MoeTensors tensors;
  tensors.router = Encode("router", random.Normals(experts * hidden, 0.3), 1, experts, hidden);
  if (sizes.fused_gate_up) {
    tensors.gate_up = RandomMatrix(random, sizes, "gate_up", 2 * inner, hidden, experts);
  } else {
    tensors.gate = RandomMatrix(random, sizes, "gate", inner, hidden, experts);
    tensors.up = RandomMatrix(random, sizes, "up", inner, hidden, experts);
  }
  tensors.down = RandomMatrix(random, sizes, "down", hidden, inner, experts);
  if (shared == 0) return tensors;
  tensors.shared_gate_input = RandomVector(random, "shared_gate_input", hidden, 0, 0.2);
  tensors.shared_gate = RandomMatrix(random, sizes, "shared_gate", shared, hidden);
  tensors.shared_up = RandomMatrix(random, sizes, "shared_up", shared, hidden);
  tensors.shared_down = RandomMatrix(random, sizes, "shared_down", hidden, shared);
  return tensors;
}

Loaded<kernels::MixerWeights> Load(kernels::Backend& backend, const LayerSizes& sizes,
                                   const MixerTensors& tensors) {
  Loaded<kernels::MixerWeights> loaded;
  Loader loader(backend, loaded.owners);
  loaded.weights.norm = loader.Vector(tensors.norm);
  loaded.weights.down = loader.Matrix(tensors.down);
  loaded.weights.up = loader.Matrix(tensors.up);
  loaded.weights.inject = loader.Vector(tensors.inject);
  loaded.weights.rms_epsilon = sizes.rms_epsilon;
  loaded.weights.num_streams = sizes.num_streams;
  return loaded;
}

Loaded<kernels::PleWeights> Load(kernels::Backend& backend, const LayerSizes&,
                                 const PleTensors& tensors) {
  Loaded<kernels::PleWeights> loaded;
  Loader loader(backend, loaded.owners);
  loaded.weights.key = loader.Matrix(tensors.key);
  loaded.weights.value = loader.Matrix(tensors.value);
  loaded.weights.norm_key = loader.Vector(tensors.norm_key);
  loaded.weights.norm_query = loader.Vector(tensors.norm_query);
  loaded.weights.norm_conv = loader.Vector(tensors.norm_conv);
  loaded.weights.conv = loader.ConvTaps(tensors.conv);
  return loaded;
}

Loaded<kernels::DeltaNetWeights> Load(kernels::Backend& backend, const LayerSizes& sizes,
                                      const DeltaNetTensors& tensors) {
  Loaded<kernels::DeltaNetWeights> loaded;
  Loader loader(backend, loaded.owners);
  loaded.weights.qkv = loader.Matrix(tensors.qkv);
  loaded.weights.gate = loader.Matrix(tensors.gate);
  loaded.weights.beta = loader.Matrix(tensors.beta);
  loaded.weights.alpha = loader.Matrix(tensors.alpha);
  loaded.weights.conv = loader.ConvTaps(tensors.conv);
  loaded.weights.a = loader.Vector(tensors.a);
  loaded.weights.dt_bias = loader.Vector(tensors.dt_bias);
  loaded.weights.norm = loader.Vector(tensors.norm);
  loaded.weights.output = loader.Matrix(tensors.output);
  loaded.weights.output_shards = Shards(tensors.output.cols, sizes.delta_head_dim);
  return loaded;
}

Loaded<kernels::AttentionWeights> Load(kernels::Backend& backend, const LayerSizes&,
                                       const AttentionTensors& tensors) {
  Loaded<kernels::AttentionWeights> loaded;
  Loader loader(backend, loaded.owners);
  loaded.weights.query = loader.Matrix(tensors.query);
  loaded.weights.key = loader.Matrix(tensors.key);
  loaded.weights.value = loader.Matrix(tensors.value);
  loaded.weights.query_norm = loader.Vector(tensors.query_norm);
  loaded.weights.key_norm = loader.Vector(tensors.key_norm);
  loaded.weights.index_query = loader.Matrix(tensors.index_query);
  loaded.weights.index_key = loader.Matrix(tensors.index_key);
  loaded.weights.index_query_norm = loader.Vector(tensors.index_query_norm);
  loaded.weights.index_key_norm = loader.Vector(tensors.index_key_norm);
  return loaded;
}

Loaded<kernels::MoeWeights> Load(kernels::Backend& backend, const LayerSizes&,
                                 const MoeTensors& tensors) {
  Loaded<kernels::MoeWeights> loaded;
  Loader loader(backend, loaded.owners);
  loaded.weights.gate = loader.Matrix(tensors.gate);
  loaded.weights.up = loader.Matrix(tensors.up);
  loaded.weights.gate_up = loader.Matrix(tensors.gate_up);
  loaded.weights.down = loader.Matrix(tensors.down);
  loaded.weights.shared_gate_input = loader.Vector(tensors.shared_gate_input);
  loaded.weights.shared_gate = loader.Matrix(tensors.shared_gate);
  loaded.weights.shared_up = loader.Matrix(tensors.shared_up);
  loaded.weights.shared_down = loader.Matrix(tensors.shared_down);
  loaded.weights.down_shards = Shards(tensors.down.cols, 32);
  if (tensors.shared_down.rows != 0) {
    loaded.weights.shared_down_shards = Shards(tensors.shared_down.cols, 32);
  }
  return loaded;
}

FloatRows RandomRows(Random& random, int64_t rows, int64_t cols, double deviation) {
  return FloatRows::Of(cols, random.Normals(rows * cols, deviation));
}

// ---- states of sequences --------------------------------------------------------------------

kernels::SequenceRows SequenceCursor::Next(int row_begin, int num_rows, int num_committed) {
  SWITCHYARD_CHECK(num_committed >= 0 && num_committed <= num_rows);
  SWITCHYARD_CHECK(num_rows - num_committed <= kMaxProvisionalRows);
  rows_ = {row_begin, num_rows, position_, num_replay_, num_committed};
  num_replay_ = 0;
  position_ += num_committed;
  return rows_;
}

void SequenceCursor::Accept(int num_accepted) {
  SWITCHYARD_CHECK(num_accepted >= 0 && num_accepted <= rows_.num_rows - rows_.num_committed);
  num_replay_ = num_accepted;
  position_ += num_accepted;
}

DeltaNetState::DeltaNetState(const LayerSizes& sizes)
    : state(
          static_cast<size_t>(sizes.num_value_heads * sizes.delta_head_dim * sizes.delta_head_dim)),
      tail(static_cast<size_t>((sizes.conv_kernel - 1) * sizes.delta_channels())),
      pending(static_cast<size_t>(kMaxProvisionalRows * sizes.delta_channels())),
      pending_gates(static_cast<size_t>(kMaxProvisionalRows * 2 * sizes.num_value_heads)) {}

kernels::DeltaNetSequence DeltaNetState::Sequence(const kernels::SequenceRows& rows) {
  kernels::DeltaNetSequence sequence;
  static_cast<kernels::SequenceRows&>(sequence) = rows;
  sequence.state = state.data();
  sequence.tail = tail.data();
  sequence.pending = pending.data();
  sequence.pending_gates = pending_gates.data();
  return sequence;
}

PleState::PleState(const LayerSizes& sizes)
    : tail(static_cast<size_t>((sizes.ple_conv_kernel - 1) * sizes.ple_dilation *
                               sizes.num_streams * sizes.hidden_size)),
      pending(static_cast<size_t>(kMaxProvisionalRows * sizes.num_streams * sizes.hidden_size)) {}

kernels::ConvSequence PleState::Sequence(const kernels::SequenceRows& rows) {
  kernels::ConvSequence sequence;
  static_cast<kernels::SequenceRows&>(sequence) = rows;
  sequence.tail = tail.data();
  sequence.pending = pending.data();
  return sequence;
}

KvPages::KvPages(const LayerSizes& sizes, kernels::KvType type, int num_pages, uint64_t seed)
    : type_(type) {
  const kernels::KvLayout layout(sizes.attention_shape(), type);
  keys_.resize(static_cast<size_t>(num_pages * layout.page_bytes()));
  values_.resize(keys_.size());
  block_keys_.resize(static_cast<size_t>(num_pages * layout.block_key_page_bytes()));
  Random random(seed);
  for (int page = 0; page < num_pages; ++page) {
    free_.insert(free_.begin() + random.Below(page + 1), page);
  }
}

kernels::KvLayer KvPages::layer() {
  return {type_, keys_.data(), values_.data(), block_keys_.data()};
}

std::vector<int32_t> KvPages::Take(int64_t num_tokens) {
  const int64_t num_pages = (num_tokens + kPageTokens - 1) / kPageTokens;
  SWITCHYARD_CHECK(num_pages <= static_cast<int64_t>(free_.size()));
  std::vector<int32_t> taken(free_.end() - num_pages, free_.end());
  free_.resize(free_.size() - taken.size());
  return taken;
}

AttentionState::AttentionState(const LayerSizes& sizes, KvPages& pages, int64_t max_tokens)
    : pages(pages.Take(max_tokens)),
      index_ring(static_cast<size_t>(kIndexRing * sizes.index_head_dim)) {}

kernels::AttentionSequence AttentionState::Sequence(const kernels::SequenceRows& rows) {
  kernels::AttentionSequence sequence;
  static_cast<kernels::SequenceRows&>(sequence) = rows;
  sequence.pages = pages;
  sequence.index_ring = index_ring.data();
  return sequence;
}

std::vector<Window> RandomWindows(Random& random, int num_rows) {
  std::vector<Window> windows;
  while (num_rows > 0) {
    Window window;
    window.num_committed = static_cast<int>(random.Below(std::min(num_rows, 4) + 1));
    const int provisional = static_cast<int>(random.Below(kMaxProvisionalRows + 1));
    window.num_rows = window.num_committed + provisional;
    const int limit = std::min(provisional, num_rows - window.num_committed);
    const double choice = random.Uniform();  // nothing, everything, or anything between
    window.num_accepted = choice < 0.25  ? 0
                          : choice < 0.5 ? limit
                                         : static_cast<int>(random.Below(limit + 1));
    if (window.num_rows == 0) continue;
    num_rows -= window.num_committed + window.num_accepted;
    windows.push_back(window);
  }
  return windows;
}

FloatRows RunWindows(
    const std::vector<Window>& windows, const FloatRows& input, Random& random,
    const std::function<FloatRows(const kernels::SequenceRows&, const FloatRows&)>& step) {
  SequenceCursor cursor;
  std::vector<float> kept;
  for (const Window& window : windows) {
    FloatRows rows = RandomRows(random, window.num_rows, input.cols);
    const int num_kept = window.num_committed + window.num_accepted;
    std::copy_n(input.values.begin() + cursor.position() * input.cols, num_kept * input.cols,
                rows.values.begin());
    const FloatRows out = step(cursor.Next(0, window.num_rows, window.num_committed), rows);
    cursor.Accept(window.num_accepted);
    kept.insert(kept.end(), out.values.begin(), out.values.begin() + num_kept * out.cols);
  }
  SWITCHYARD_CHECK(cursor.position() == input.rows());
  const FloatRows none = step(cursor.Next(0, 0), FloatRows(0, input.cols));
  return FloatRows::Of(none.cols, std::move(kept));
}

}  // namespace switchyard::fixtures
