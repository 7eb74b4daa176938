#include "model/model_summary.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>

#include "base/check.h"

namespace switchyard::model {
namespace {

constexpr std::string_view kPartNames[] = {
    "token embedding", "n-gram table",   "mixers",         "delta net", "attention", "indexers",
    "routers",         "routed experts", "shared experts", "n-gram",    "output",    "draft blocks",
};
static_assert(std::size(kPartNames) == kNumModelParts);

void AddTo(std::vector<TypeBytes>& types, const TensorInfo& tensor) {
  auto it = std::find_if(types.begin(), types.end(),
                         [&](const TypeBytes& type) { return type.dtype == tensor.dtype; });
  if (it == types.end()) it = types.insert(types.end(), TypeBytes{tensor.dtype});
  ++it->num_tensors;
  it->bytes += tensor.bytes();
}

void SortByBytes(std::vector<TypeBytes>& types) {
  std::stable_sort(types.begin(), types.end(),
                   [](const TypeBytes& a, const TypeBytes& b) { return a.bytes > b.bytes; });
}

// Adds tensors, those that are there, to the totals.
class Adder {
 public:
  explicit Adder(ModelSummary& summary) : summary_(summary) {
    summary_.parts.resize(kNumModelParts);
  }

  // Returns the bytes that were added.
  int64_t Add(ModelPart part, std::initializer_list<TensorRef> tensors) {
    int64_t bytes = 0;
    for (const TensorRef tensor : tensors) {
      if (tensor == nullptr) continue;
      bytes += tensor->bytes();
      ++summary_.num_tensors;
      AddTo(summary_.parts[static_cast<size_t>(part)].types, *tensor);
      AddTo(summary_.types, *tensor);
    }
    summary_.parts[static_cast<size_t>(part)].bytes += bytes;
    summary_.bytes += bytes;
    return bytes;
  }

  int64_t Add(const MixerTensors& mixer) {
    return Add(ModelPart::kMixers, {mixer.norm, mixer.down, mixer.up, mixer.inject});
  }

  // Also sorts what was added.
  void Finish() {
    SortByBytes(summary_.types);
    for (PartBytes& part : summary_.parts) SortByBytes(part.types);
  }

 private:
  ModelSummary& summary_;
};

LayerBytes AddLayer(Adder& adder, const ModelSpec& spec, const LayerSpec& layer) {
  LayerBytes bytes;
  bytes.kind = layer.kind;
  bytes.dense_bytes = adder.Add(layer.mixer) + adder.Add(layer.moe_mixer);
  const AttentionTensors& a = layer.attention;
  bytes.dense_bytes += adder.Add(ModelPart::kAttention,
                                 {a.query, a.key, a.value, a.output, a.query_norm, a.key_norm});
  bytes.dense_bytes += adder.Add(
      ModelPart::kIndexer, {a.index_query, a.index_key, a.index_query_norm, a.index_key_norm});
  const DeltaNetTensors& d = layer.delta_net;
  bytes.dense_bytes +=
      adder.Add(ModelPart::kDeltaNet, {d.qkv, d.gate, d.qkv_gate, d.beta, d.alpha, d.beta_alpha,
                                       d.conv, d.a, d.dt_bias, d.norm, d.output});
  const MoeTensors& m = layer.moe;
  bytes.dense_bytes += adder.Add(ModelPart::kRouters, {m.router});
  bytes.dense_bytes += adder.Add(ModelPart::kSharedExperts,
                                 {m.shared_gate_input, m.shared_gate, m.shared_up, m.shared_down});
  bytes.expert_bytes = adder.Add(ModelPart::kRoutedExperts, {m.gate, m.up, m.gate_up, m.down});
  bytes.bytes_per_expert = bytes.expert_bytes / spec.moe.num_experts;
  return bytes;
}

void SummarizeExperts(const ModelSpec& spec, ModelSummary& summary) {
  std::map<int64_t, int> frequency;
  int64_t sum = 0;
  for (const LayerBytes& layer : summary.layers) {
    ++frequency[layer.bytes_per_expert];
    sum += layer.bytes_per_expert;
  }
  summary.min_bytes_per_expert = frequency.begin()->first;
  summary.max_bytes_per_expert = frequency.rbegin()->first;
  summary.typical_bytes_per_expert =
      std::max_element(frequency.begin(), frequency.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      })->first;
  summary.mean_bytes_per_expert =
      static_cast<double>(sum) / static_cast<double>(summary.layers.size());
  summary.expert_bytes_per_token = sum * spec.moe.top_k;
}

}  // namespace

std::string_view Name(ModelPart part) {
  const auto index = static_cast<size_t>(part);
  SWITCHYARD_CHECK(index < std::size(kPartNames));
  return kPartNames[index];
}

ModelSummary Summarize(const ModelSpec& spec) {
  SWITCHYARD_CHECK(!spec.layers.empty());
  ModelSummary summary;
  Adder adder(summary);
  for (const LayerSpec& layer : spec.layers) {
    summary.layers.push_back(AddLayer(adder, spec, layer));
    summary.dense_bytes_per_token += summary.layers.back().dense_bytes;
  }
  summary.dense_bytes_per_token += adder.Add(spec.final_mixer);
  if (spec.ple.has_value()) {
    const PleTensors& p = spec.ple->tensors;
    const int64_t bytes =
        adder.Add(ModelPart::kPle, {p.key, p.value, p.norm_key, p.norm_query, p.norm_conv, p.conv});
    summary.layers[static_cast<size_t>(spec.ple->layer)].dense_bytes += bytes;
    summary.dense_bytes_per_token += bytes;
    adder.Add(ModelPart::kPleTable, {spec.ple->table});
  }
  summary.dense_bytes_per_token += adder.Add(ModelPart::kOutput, {spec.output});
  if (!spec.is_output_tied()) adder.Add(ModelPart::kTokenEmbedding, {spec.token_embedding});
  for (const TensorRef tensor : spec.mtp_tensors) adder.Add(ModelPart::kMtp, {tensor});
  adder.Finish();
  SummarizeExperts(spec, summary);
  return summary;
}

}  // namespace switchyard::model
