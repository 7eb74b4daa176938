#include "placement/rank_reads.h"

#include <algorithm>
#include <initializer_list>

namespace switchyard::placement {
namespace {

using model::TensorRef;

// A fraction in whole numbers: byte counts stay exact where a cut is at whole blocks.
struct Part {
  int64_t of = 1;
  int64_t all = 1;
};
constexpr Part kAll = {1, 1};

Part PartIn(const Range& range, int64_t all) { return {range.size(), all}; }

void Add(WeightBytes& sum, std::initializer_list<TensorRef> tensors, Part part = kAll) {
  for (const TensorRef tensor : tensors) {
    if (tensor != nullptr) sum.Add(tensor->dtype, tensor->bytes() * part.of / part.all);
  }
}

void Add(WeightBytes& sum, const model::MixerTensors& mixer) {
  Add(sum, {mixer.norm, mixer.down, mixer.up, mixer.inject});
}

// Bytes of one value of the block keys of sparse attention.
constexpr double kBlockKeyValueBytes = 2;

double BlockKeyBytesPerToken(const model::ModelSpec& spec, const model::LayerSpec& layer) {
  if (layer.compress_ratio == 0) return 0;
  return kBlockKeyValueBytes * spec.attention.index_head_dim / layer.compress_ratio;
}

void SetMixing(const model::ModelSpec& spec, const model::LayerSpec& layer, const LayerShare& share,
               LayerReads& reads) {
  const Part columns = PartIn(share.output.columns, layer.output_shards.strip_columns);
  if (layer.kind == model::LayerKind::kAttention) {
    const model::AttentionTensors& a = layer.attention;
    Add(reads.mixing, {a.query}, PartIn(share.query_heads, spec.attention.num_heads));
    Add(reads.mixing, {a.key, a.value}, PartIn(share.kv_heads, spec.attention.num_kv_heads));
    Add(reads.mixing, {a.output}, columns);
    Add(reads.mixing, {a.query_norm, a.key_norm});
    // In a dense layer the indexer is left in the file.
    if (layer.compress_ratio != 0) {
      Add(reads.mixing, {a.index_query, a.index_key, a.index_query_norm, a.index_key_norm});
    }
    reads.kv_bytes_per_token =
        2 * kKvValueBytes * static_cast<double>(share.kv_heads.size()) * spec.attention.head_dim +
        BlockKeyBytesPerToken(spec, layer);
    return;
  }
  const model::DeltaNetTensors& d = layer.delta_net;
  const Part heads = PartIn(share.key_heads, spec.delta_net->num_key_heads);
  Add(reads.mixing,
      {d.qkv, d.gate, d.qkv_gate, d.beta, d.alpha, d.beta_alpha, d.conv, d.a, d.dt_bias}, heads);
  Add(reads.mixing, {d.norm});
  Add(reads.mixing, {d.output}, columns);
  const int64_t head_dim = spec.delta_net->head_dim;
  const int64_t all_states =
      spec.delta_net->num_value_heads * head_dim * head_dim * static_cast<int64_t>(sizeof(float));
  reads.state_bytes = all_states * heads.of / heads.all;
}

void SetExperts(const model::ModelSpec& spec, const model::LayerSpec& layer,
                const LayerShare& share, LayerReads& reads) {
  const model::MoeTensors& m = layer.moe;
  if (share.has_experts) {
    const Part slice = PartIn(share.inner.columns, layer.down_shards.strip_columns);
    const Part one = {slice.of, slice.all * spec.moe.num_experts};
    Add(reads.expert, {m.gate, m.up, m.gate_up, m.down}, one);
    reads.num_experts =
        share.has_all_experts ? spec.moe.num_experts : static_cast<int64_t>(share.experts.size());
  }
  if (share.has_shared_expert) {
    Add(reads.shared, {m.shared_gate, m.shared_up, m.shared_down},
        PartIn(share.shared_inner.columns, layer.shared_down_shards.strip_columns));
  }
}

}  // namespace

void WeightBytes::Add(DType dtype, int64_t bytes) {
  if (bytes == 0) return;
  auto it = std::find_if(bytes_.begin(), bytes_.end(),
                         [&](const auto& format) { return format.first == dtype; });
  if (it == bytes_.end()) it = bytes_.insert(bytes_.end(), {dtype, 0});
  it->second += bytes;
}

void WeightBytes::Add(const WeightBytes& other) {
  for (const auto& [dtype, bytes] : other.bytes_) Add(dtype, bytes);
}

int64_t WeightBytes::total() const {
  int64_t sum = 0;
  for (const auto& [dtype, bytes] : bytes_) sum += bytes;
  return sum;
}

int64_t LayerReads::dense_bytes() const {
  return mixers.total() + mixing.total() + router.total() + ple.total() + shared.total();
}

int64_t RankReads::dense_bytes() const {
  int64_t sum = head.total() + embedding_bytes;
  for (const LayerReads& layer : layers) sum += layer.dense_bytes();
  return sum;
}

int64_t RankReads::expert_bytes() const {
  int64_t sum = 0;
  for (const LayerReads& layer : layers) sum += layer.expert_bytes();
  return sum;
}

int64_t RankReads::state_bytes() const {
  int64_t sum = 0;
  for (const LayerReads& layer : layers) sum += layer.state_bytes;
  return sum;
}

double RankReads::kv_bytes_per_token() const {
  double sum = 0;
  for (const LayerReads& layer : layers) sum += layer.kv_bytes_per_token;
  return sum;
}

RankReads ReadsOf(const model::ModelSpec& spec, const RankShare& share) {
  RankReads reads;
  for (size_t l = 0; l < share.layers.size(); ++l) {
    const model::LayerSpec& layer = spec.layers[l];
    const LayerShare& mine = share.layers[l];
    LayerReads& out = reads.layers.emplace_back();
    if (mine.has_dense) {
      Add(out.mixers, layer.mixer);
      Add(out.mixers, layer.moe_mixer);
      SetMixing(spec, layer, mine, out);
      Add(out.router, {layer.moe.router, layer.moe.shared_gate_input});
      if (spec.ple.has_value() && spec.ple->layer == static_cast<int>(l)) {
        const model::PleTensors& p = spec.ple->tensors;
        Add(out.ple, {p.key, p.value, p.norm_key, p.norm_query, p.norm_conv, p.conv});
      }
    }
    SetExperts(spec, layer, mine, out);
  }
  if (!share.output_rows.empty()) {
    Add(reads.head, spec.final_mixer);
    Add(reads.head, {spec.output}, PartIn(share.output_rows, spec.vocab_size));
  }
  // A tied embedding that is all here as output matrix is there once.
  if (share.has_embedding && !(spec.is_output_tied() && share.has_whole_output(spec))) {
    reads.embedding_bytes = spec.token_embedding->bytes();
  }
  return reads;
}

double KvReadBytes(const model::ModelSpec& spec, const model::LayerSpec& layer,
                   const LayerShare& share, int64_t context_tokens) {
  if (layer.kind != model::LayerKind::kAttention || !share.has_dense) return 0;
  const double bytes_per_token =
      2 * kKvValueBytes * static_cast<double>(share.kv_heads.size()) * spec.attention.head_dim;
  if (layer.compress_ratio == 0) return bytes_per_token * static_cast<double>(context_tokens);
  const int64_t most = spec.attention.budget_tokens + layer.compress_ratio - 1;
  return bytes_per_token * static_cast<double>(std::min(context_tokens, most)) +
         BlockKeyBytesPerToken(spec, layer) * static_cast<double>(context_tokens);
}

}  // namespace switchyard::placement
