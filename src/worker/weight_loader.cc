#include "worker/weight_loader.h"

#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/shard_segments.h"
#include "worker/tensor_slice.h"

namespace switchyard::worker {
namespace {

using kernels::WeightUse;

using placement::LayerShare;
using placement::Range;
using placement::RankShare;

Range Scaled(Range range, int64_t factor) { return {range.begin * factor, range.end * factor}; }
Range Shifted(Range range, int64_t offset) { return {range.begin + offset, range.end + offset}; }

// Calls visit(slice, use, target) for every weight of the trunk that the rank has; `target` is
// where the loaded weight's pointer goes. Absent tensors are skipped.
template <typename Visit>
absl::Status VisitMixer(const model::MixerTensors& from, kernels::MixerWeights& to, Visit& visit) {
  SWITCHYARD_RETURN_IF_ERROR(visit(from.norm, WeightUse::kVector, to.norm));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.down, WeightUse::kMatrix, to.down));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.up, WeightUse::kMatrix, to.up));
  return visit(from.inject, WeightUse::kVector, to.inject);
}

// The columns of a matrix that a rank has, of all strips.
TensorSlice ColumnsOf(TensorSlice slice, const placement::ColumnShare& share) {
  if (slice.tensor() == nullptr || share.is_whole()) return slice;
  std::vector<Range> columns;
  for (int strip = 0; strip < share.shards.num_strips; ++strip) {
    columns.push_back(Shifted(share.columns, strip * share.shards.strip_columns));
  }
  return slice.Columns(columns);
}

template <typename Visit>
absl::Status VisitAttention(const model::AttentionSpec& spec, const model::LayerSpec& from,
                            const LayerShare& share, LayerWeights& to, Visit& visit) {
  const model::AttentionTensors& tensors = from.attention;
  kernels::AttentionWeights& weights = to.attention;
  const auto heads = [](model::TensorRef tensor, Range range, int64_t rows_per_head) {
    return TensorSlice::Rows(tensor, {Scaled(range, rows_per_head)});
  };
  const int64_t query_rows = int64_t{spec.head_dim} * (spec.has_output_gate ? 2 : 1);
  SWITCHYARD_RETURN_IF_ERROR(visit(heads(tensors.query, share.query_heads, query_rows),
                                   WeightUse::kMatrix, weights.query));
  SWITCHYARD_RETURN_IF_ERROR(
      visit(heads(tensors.key, share.kv_heads, spec.head_dim), WeightUse::kMatrix, weights.key));
  SWITCHYARD_RETURN_IF_ERROR(visit(heads(tensors.value, share.kv_heads, spec.head_dim),
                                   WeightUse::kMatrix, weights.value));
  SWITCHYARD_RETURN_IF_ERROR(
      visit(ColumnsOf(tensors.output, share.output), WeightUse::kMatrix, to.attention_output));
  SWITCHYARD_RETURN_IF_ERROR(visit(tensors.query_norm, WeightUse::kVector, weights.query_norm));
  SWITCHYARD_RETURN_IF_ERROR(visit(tensors.key_norm, WeightUse::kVector, weights.key_norm));
  if (from.compress_ratio == 0) return absl::OkStatus();  // an indexer would not be used
  SWITCHYARD_RETURN_IF_ERROR(visit(tensors.index_query, WeightUse::kMatrix, weights.index_query));
  SWITCHYARD_RETURN_IF_ERROR(visit(tensors.index_key, WeightUse::kMatrix, weights.index_key));
  SWITCHYARD_RETURN_IF_ERROR(
      visit(tensors.index_query_norm, WeightUse::kVector, weights.index_query_norm));
  return visit(tensors.index_key_norm, WeightUse::kVector, weights.index_key_norm);
}

// The value heads that belong to some key heads.
std::vector<Range> ValueHeadsOf(const model::DeltaNetSpec& spec, Range key_heads) {
  const int64_t ratio = spec.num_value_heads / spec.num_key_heads;
  if (spec.value_head_order == model::ValueHeadOrder::kGrouped) return {Scaled(key_heads, ratio)};
  std::vector<Range> heads;
  for (int64_t i = 0; i < ratio; ++i) heads.push_back(Shifted(key_heads, i * spec.num_key_heads));
  return heads;
}

std::vector<Range> Scaled(std::vector<Range> ranges, int64_t factor, int64_t offset = 0) {
  for (Range& range : ranges) range = Shifted(Scaled(range, factor), offset);
  return ranges;
}

// The same rows of each of some adjacent groups, for all of `parts` one after the other.
TensorSlice GroupRows(model::TensorRef tensor, Range groups, int64_t group_rows,
                      std::initializer_list<Range> parts) {
  std::vector<Range> rows;
  for (const Range& part : parts) {
    for (int64_t group = groups.begin; group < groups.end; ++group) {
      rows.push_back(Shifted(part, group * group_rows));
    }
  }
  return TensorSlice::Rows(tensor, rows);
}

template <typename Visit>
absl::Status VisitDeltaNet(const model::DeltaNetSpec& spec, const model::DeltaNetTensors& from,
                           const LayerShare& share, kernels::DeltaNetWeights& to, Visit& visit) {
  const int64_t dim = spec.head_dim, ratio = spec.num_value_heads / spec.num_key_heads;
  const Range keys = share.key_heads;
  const std::vector<Range> value_heads = ValueHeadsOf(spec, keys);
  // Rows of q, k and v in qkv and among the channels of the convolution.
  std::vector<Range> channels = {Scaled(keys, dim),
                                 Shifted(Scaled(keys, dim), spec.num_key_heads * dim)};
  for (const Range& range : Scaled(value_heads, dim, 2 * spec.num_key_heads * dim)) {
    channels.push_back(range);
  }
  TensorSlice qkv = nullptr, gate = nullptr, beta = nullptr, alpha = nullptr;
  if (from.qkv_gate != nullptr) {
    const int64_t values = ratio * dim, group_rows = 2 * dim + 2 * values;
    qkv = GroupRows(from.qkv_gate, keys, group_rows,
                    {{0, dim}, {dim, 2 * dim}, {2 * dim, 2 * dim + values}});
    gate = GroupRows(from.qkv_gate, keys, group_rows, {{2 * dim + values, group_rows}});
  } else {
    qkv = TensorSlice::Rows(from.qkv, channels);
    gate = TensorSlice::Rows(from.gate, Scaled(value_heads, dim));
  }
  if (from.beta_alpha != nullptr) {
    beta = GroupRows(from.beta_alpha, keys, 2 * ratio, {{0, ratio}});
    alpha = GroupRows(from.beta_alpha, keys, 2 * ratio, {{ratio, 2 * ratio}});
  } else {
    beta = TensorSlice::Rows(from.beta, value_heads);
    alpha = TensorSlice::Rows(from.alpha, value_heads);
  }
  SWITCHYARD_RETURN_IF_ERROR(visit(qkv, WeightUse::kMatrix, to.qkv));
  SWITCHYARD_RETURN_IF_ERROR(visit(gate, WeightUse::kMatrix, to.gate));
  SWITCHYARD_RETURN_IF_ERROR(visit(beta, WeightUse::kMatrix, to.beta));
  SWITCHYARD_RETURN_IF_ERROR(visit(alpha, WeightUse::kMatrix, to.alpha));
  SWITCHYARD_RETURN_IF_ERROR(
      visit(TensorSlice::Rows(from.conv, channels), WeightUse::kConvTaps, to.conv));
  // Vectors: their heads are columns.
  SWITCHYARD_RETURN_IF_ERROR(
      visit(TensorSlice(from.a).Columns(value_heads), WeightUse::kVector, to.a));
  SWITCHYARD_RETURN_IF_ERROR(
      visit(TensorSlice(from.dt_bias).Columns(value_heads), WeightUse::kVector, to.dt_bias));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.norm, WeightUse::kVector, to.norm));
  return visit(ColumnsOf(from.output, share.output), WeightUse::kMatrix, to.output);
}

// Calls visit(slice, target) for the tensors of the routed experts.
template <typename Visit>
absl::Status VisitRouted(const model::MoeTensors& from, const LayerShare& share,
                         kernels::MoeWeights& to, Visit&& visit) {
  const Range inner = share.inner.columns;
  const int64_t inner_size = share.inner.shards.strip_columns;
  const auto slabs = [&](model::TensorRef tensor, const std::vector<Range>& rows) -> TensorSlice {
    if (tensor == nullptr) return nullptr;
    return share.has_all_experts ? TensorSlice::SlabRows(tensor, rows)
                                 : TensorSlice::SlabRows(tensor, rows, share.experts);
  };
  SWITCHYARD_RETURN_IF_ERROR(visit(slabs(from.gate, {inner}), to.gate));
  SWITCHYARD_RETURN_IF_ERROR(visit(slabs(from.up, {inner}), to.up));
  SWITCHYARD_RETURN_IF_ERROR(
      visit(slabs(from.gate_up, {inner, Shifted(inner, inner_size)}), to.gate_up));
  return visit(ColumnsOf(slabs(from.down, {{0, from.down->dims[1]}}), share.inner), to.down);
}

template <typename Visit>
absl::Status VisitShared(const model::MoeTensors& from, const LayerShare& share,
                         kernels::MoeWeights& to, Visit& visit) {
  const Range shared = share.shared_inner.columns;
  if (!share.has_shared_expert) return absl::OkStatus();
  SWITCHYARD_RETURN_IF_ERROR(
      visit(from.shared_gate_input, WeightUse::kVector, to.shared_gate_input));
  SWITCHYARD_RETURN_IF_ERROR(
      visit(TensorSlice::Rows(from.shared_gate, {shared}), WeightUse::kMatrix, to.shared_gate));
  SWITCHYARD_RETURN_IF_ERROR(
      visit(TensorSlice::Rows(from.shared_up, {shared}), WeightUse::kMatrix, to.shared_up));
  return visit(ColumnsOf(from.shared_down, share.shared_inner), WeightUse::kMatrix, to.shared_down);
}

template <typename Visit>
absl::Status VisitPle(const model::PleTensors& from, kernels::PleWeights& to, Visit& visit) {
  SWITCHYARD_RETURN_IF_ERROR(visit(from.key, WeightUse::kMatrix, to.key));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.value, WeightUse::kMatrix, to.value));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.norm_key, WeightUse::kVector, to.norm_key));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.norm_query, WeightUse::kVector, to.norm_query));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.norm_conv, WeightUse::kVector, to.norm_conv));
  return visit(from.conv, WeightUse::kConvTaps, to.conv);
}

template <typename Visit>
absl::Status VisitDense(const model::ModelSpec& spec, int l, const LayerShare& share,
                        ModelWeights& weights, Visit& visit) {
  const model::LayerSpec& layer = spec.layers[static_cast<size_t>(l)];
  LayerWeights& to = weights.layers[static_cast<size_t>(l)];
  if (spec.ple.has_value() && spec.ple->layer == l) {
    SWITCHYARD_RETURN_IF_ERROR(VisitPle(spec.ple->tensors, weights.ple, visit));
  }
  SWITCHYARD_RETURN_IF_ERROR(VisitMixer(layer.mixer, to.mixer, visit));
  if (layer.kind == model::LayerKind::kAttention) {
    SWITCHYARD_RETURN_IF_ERROR(VisitAttention(spec.attention, layer, share, to, visit));
  } else {
    SWITCHYARD_RETURN_IF_ERROR(
        VisitDeltaNet(*spec.delta_net, layer.delta_net, share, to.delta_net, visit));
  }
  SWITCHYARD_RETURN_IF_ERROR(VisitMixer(layer.moe_mixer, to.moe_mixer, visit));
  return visit(layer.moe.router, WeightUse::kMatrix, to.router);
}

// `routed(layer, slice, target)` gets the tensors of the routed experts, `visit` all others.
template <typename Visit, typename Routed>
absl::Status VisitModel(const model::ModelSpec& spec, const RankShare& share, ModelWeights& weights,
                        Visit visit, Routed routed) {
  if (share.has_embedding) {
    SWITCHYARD_RETURN_IF_ERROR(
        visit(spec.token_embedding, WeightUse::kRowTable, weights.token_embedding));
  }
  for (int l = share.first_layer; l < share.end_layer; ++l) {
    const LayerShare& layer = share.layers[static_cast<size_t>(l)];
    if (layer.has_dense) {
      SWITCHYARD_RETURN_IF_ERROR(VisitDense(spec, l, layer, weights, visit));
    }
    const model::MoeTensors& tensors = spec.layers[static_cast<size_t>(l)].moe;
    kernels::MoeWeights& to = weights.layers[static_cast<size_t>(l)].moe;
    SWITCHYARD_RETURN_IF_ERROR(VisitRouted(
        tensors, layer, to, [&](const TensorSlice& slice, const kernels::Weight*& target) {
          return routed(l, slice, target);
        }));
    SWITCHYARD_RETURN_IF_ERROR(VisitShared(tensors, layer, to, visit));
  }
  if (share.output_rows.empty()) return absl::OkStatus();
  SWITCHYARD_RETURN_IF_ERROR(VisitMixer(spec.final_mixer, weights.final_mixer, visit));
  // A tied output is kept once, unless the rank needs all rows to embed and some for the head.
  if (spec.is_output_tied() && share.has_embedding && share.has_whole_output(spec)) {
    weights.output = weights.token_embedding;
    return absl::OkStatus();
  }
  return visit(TensorSlice::Rows(spec.output, {share.output_rows}), WeightUse::kMatrix,
               weights.output);
}

static_assert(model::kMaxShardStrips <= kernels::kMaxShardStrips);

kernels::ShardBorders Borders(const model::ColumnShards& shards) {
  return {.border = shards.border,
          .num_strips = shards.num_strips,
          .strip_columns = shards.strip_columns};
}

kernels::AttentionShape MakeAttentionShape(const model::ModelSpec& spec,
                                           const model::LayerSpec& layer, const LayerShare& share) {
  const model::AttentionSpec& attention = spec.attention;
  kernels::AttentionShape shape;
  shape.num_heads = static_cast<int>(share.query_heads.size());
  shape.num_kv_heads = static_cast<int>(share.kv_heads.size());
  shape.kv_group_size = attention.num_heads / attention.num_kv_heads;
  shape.head_offset = static_cast<int>(share.query_heads.begin -
                                       share.kv_heads.begin * int64_t{shape.kv_group_size});
  shape.head_dim = attention.head_dim;
  shape.num_rotary_dims = attention.num_rotary_dims;
  shape.rope_base = attention.rope_base;
  shape.rms_epsilon = spec.rms_epsilon;
  shape.output_gate = attention.has_output_gate;
  if (layer.compress_ratio == 0) return shape;
  shape.num_index_heads = attention.num_index_heads;
  shape.index_head_dim = attention.index_head_dim;
  shape.qsa_ratio = layer.compress_ratio;
  shape.qsa_budget = attention.budget_tokens;
  return shape;
}

kernels::DeltaNetShape MakeDeltaNetShape(const model::ModelSpec& spec, const LayerShare& share) {
  const model::DeltaNetSpec& delta_net = *spec.delta_net;
  kernels::DeltaNetShape shape;
  shape.num_key_heads = static_cast<int>(share.key_heads.size());
  shape.num_value_heads =
      shape.num_key_heads * (delta_net.num_value_heads / delta_net.num_key_heads);
  shape.head_dim = delta_net.head_dim;
  shape.conv_kernel = delta_net.conv_kernel;
  shape.tiled_heads = delta_net.value_head_order == model::ValueHeadOrder::kTiled;
  shape.silu_gate = delta_net.output_gate == model::GateFunction::kSilu;
  shape.rms_epsilon = spec.rms_epsilon;
  return shape;
}

void SetMixerShape(const model::ModelSpec& spec, kernels::MixerWeights& mixer) {
  mixer.rms_epsilon = spec.rms_epsilon;
  mixer.num_streams = spec.num_residual_streams;
}

// Slab of each expert of the model, -1 = it is another rank's.
std::vector<int32_t> SlotsOf(const std::vector<int32_t>& experts, int num_experts) {
  std::vector<int32_t> slots(static_cast<size_t>(num_experts), -1);
  for (size_t i = 0; i < experts.size(); ++i) {
    slots[static_cast<size_t>(experts[i])] = static_cast<int32_t>(i);
  }
  return slots;
}

void SetLayerShapes(const model::ModelSpec& spec, const model::LayerSpec& layer,
                    const LayerShare& share, LayerWeights& to) {
  to.kind = layer.kind;
  to.is_here = share.is_here;
  to.has_dense = share.has_dense;
  if (!share.is_here) return;
  if (share.has_dense) {
    SetMixerShape(spec, to.mixer);
    SetMixerShape(spec, to.moe_mixer);
    const kernels::ShardBorders output = Borders(share.output.local());
    if (layer.kind == model::LayerKind::kAttention) {
      to.attention_shape = MakeAttentionShape(spec, layer, share);
      to.attention_output_shards = output;
    } else {
      to.delta_net_shape = MakeDeltaNetShape(spec, share);
      to.delta_net.output_shards = output;
    }
  }
  to.moe.down_shards = Borders(share.inner.local());
  to.moe.shared_down_shards = Borders(share.shared_inner.local());
  if (share.has_all_experts) return;
  to.expert_slots = SlotsOf(share.experts, spec.moe.num_experts);
  to.moe.expert_slots = to.expert_slots;
}

// What a stage must know beside the tensors.
void SetShapes(const model::ModelSpec& spec, const RankShare& share, ModelWeights& weights) {
  SetMixerShape(spec, weights.final_mixer);
  weights.layers.resize(spec.layers.size());
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    SetLayerShapes(spec, spec.layers[l], share.layers[l], weights.layers[l]);
  }
  if (!spec.ple.has_value()) return;
  weights.ple_shape.num_streams = spec.num_residual_streams;
  weights.ple_shape.conv_kernel = spec.ple->conv_kernel;
  weights.ple_shape.dilation = spec.ple->ngram_size;
  weights.ple_shape.rms_epsilon = spec.rms_epsilon;
}

}  // namespace

int64_t LoadedFileBytes(const model::ModelSpec& spec, const RankShare& share) {
  ModelWeights weights;
  weights.layers.resize(spec.layers.size());
  int64_t bytes = 0;
  const auto add = [&](const TensorSlice& slice) {
    if (slice.tensor() != nullptr) bytes += slice.bytes();
    return absl::OkStatus();
  };
  const absl::Status status = VisitModel(
      spec, share, weights,
      [&](const TensorSlice& slice, WeightUse, const kernels::Weight*&) { return add(slice); },
      [&](int, const TensorSlice& slice, const kernels::Weight*&) { return add(slice); });
  SWITCHYARD_CHECK(status.ok());
  return bytes;
}

std::vector<ExpertLayer> DescribeExperts(const model::ModelSpec& spec, const RankShare& share,
                                         const kernels::Backend& backend) {
  std::vector<ExpertLayer> layers(spec.layers.size());
  for (int l = share.first_layer; l < share.end_layer; ++l) {
    const LayerShare& from = share.layers[static_cast<size_t>(l)];
    ExpertLayer& layer = layers[static_cast<size_t>(l)];
    kernels::MoeWeights unused;
    const auto add = [&](const TensorSlice& slice, const kernels::Weight*&) {
      if (slice.tensor() == nullptr) return absl::OkStatus();
      layer.expert_bytes += backend.SlabBytes(slice.View());
      layer.file_bytes += slice.bytes() / slice.num_slabs();
      return absl::OkStatus();
    };
    if (!from.has_experts) continue;
    SWITCHYARD_CHECK(VisitRouted(spec.layers[static_cast<size_t>(l)].moe, from, unused, add).ok());
    if (from.has_all_experts) {
      for (int e = 0; e < spec.moe.num_experts; ++e) layer.present.push_back(e);
    } else {
      layer.present.assign(from.experts.begin(), from.experts.end());
    }
  }
  return layers;
}

namespace {

// Slots of a layer's experts in the fast tier, if they have tiers.
std::optional<int64_t> TierSlots(absl::Span<const ExpertLayer> experts, int layer) {
  if (experts.empty() || !experts[static_cast<size_t>(layer)].has_tiers()) return std::nullopt;
  return experts[static_cast<size_t>(layer)].num_slots;
}

}  // namespace

absl::StatusOr<ModelWeights> LoadWeights(const model::GgufFile& file, const model::ModelSpec& spec,
                                         const RankShare& share,
                                         absl::Span<const ExpertLayer> experts,
                                         kernels::Backend& backend, const LoadProgress& progress) {
  int64_t total_bytes = LoadedFileBytes(spec, share);
  for (const ExpertLayer& layer : experts) {
    if (layer.has_tiers()) {
      total_bytes -= static_cast<int64_t>(layer.present.size()) * layer.file_bytes;
    }
  }
  ModelWeights weights;
  SetShapes(spec, share, weights);
  std::vector<kernels::WeightRequest> requests;
  const auto request = [&](const TensorSlice& slice, WeightUse use,
                           const kernels::Weight*&) -> absl::Status {
    if (slice.tensor() != nullptr) requests.push_back({slice.View(), use});
    return absl::OkStatus();
  };
  const auto request_routed = [&](int layer, const TensorSlice& slice,
                                  const kernels::Weight*&) -> absl::Status {
    if (slice.tensor() == nullptr) return absl::OkStatus();
    requests.push_back({slice.View(), WeightUse::kMatrix, TierSlots(experts, layer)});
    return absl::OkStatus();
  };
  SWITCHYARD_RETURN_IF_ERROR(VisitModel(spec, share, weights, request, request_routed));
  SWITCHYARD_RETURN_IF_ERROR(backend.ReserveWeights(requests));
  int64_t done_bytes = 0;
  // With `tiered` the tensor has tiers: it keeps its source.
  const auto load_some = [&](const TensorSlice& slice, WeightUse use,
                             std::optional<int64_t> num_slots, const kernels::Weight*& target,
                             std::vector<kernels::Weight*>* tiered) -> absl::Status {
    kernels::WeightSource source;
    source.name = slice.tensor()->name;
    source.view = slice.View();
    source.num_slots = num_slots;
    source.read = [slice, &file](int64_t first, int64_t count, std::byte* out) {
      return slice.Read(file, first, count, out);
    };
    absl::StatusOr<std::unique_ptr<kernels::Weight>> weight = backend.LoadWeight(source, use);
    if (!weight.ok()) return weight.status();
    target = weight->get();
    if (tiered != nullptr) tiered->push_back(weight->get());
    weights.owned.push_back(*std::move(weight));
    if (tiered == nullptr) done_bytes += slice.bytes();
    return progress ? progress(done_bytes, total_bytes) : absl::OkStatus();
  };
  const auto load = [&](const TensorSlice& slice, WeightUse use,
                        const kernels::Weight*& target) -> absl::Status {
    if (slice.tensor() == nullptr) return absl::OkStatus();
    return load_some(slice, use, std::nullopt, target, nullptr);
  };
  const auto load_routed = [&](int layer, const TensorSlice& slice,
                               const kernels::Weight*& target) -> absl::Status {
    if (slice.tensor() == nullptr) return absl::OkStatus();
    const std::optional<int64_t> num_slots = TierSlots(experts, layer);
    auto& tiered = weights.layers[static_cast<size_t>(layer)].tiered_experts;
    return load_some(slice, WeightUse::kMatrix, num_slots, target,
                     num_slots.has_value() ? &tiered : nullptr);
  };
  SWITCHYARD_RETURN_IF_ERROR(VisitModel(spec, share, weights, load, load_routed));
  SWITCHYARD_RETURN_IF_ERROR(file.CheckUnchanged());
  return weights;
}

}  // namespace switchyard::worker
