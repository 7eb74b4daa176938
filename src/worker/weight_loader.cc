#include "worker/weight_loader.h"

#include <map>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/shard_segments.h"
#include "worker/row_selection.h"

namespace switchyard::worker {
namespace {

using kernels::WeightUse;

// Calls visit(rows, use, target) for every weight of the trunk; `target` is where the loaded
// weight's pointer goes. Absent tensors are skipped.
template <typename Visit>
absl::Status VisitMixer(const model::MixerTensors& from, kernels::MixerWeights& to, Visit& visit) {
  SWITCHYARD_RETURN_IF_ERROR(visit(from.norm, WeightUse::kVector, to.norm));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.down, WeightUse::kMatrix, to.down));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.up, WeightUse::kMatrix, to.up));
  return visit(from.inject, WeightUse::kVector, to.inject);
}

template <typename Visit>
absl::Status VisitAttention(const model::LayerSpec& from, LayerWeights& to, Visit& visit) {
  const model::AttentionTensors& tensors = from.attention;
  kernels::AttentionWeights& weights = to.attention;
  SWITCHYARD_RETURN_IF_ERROR(visit(tensors.query, WeightUse::kMatrix, weights.query));
  SWITCHYARD_RETURN_IF_ERROR(visit(tensors.key, WeightUse::kMatrix, weights.key));
  SWITCHYARD_RETURN_IF_ERROR(visit(tensors.value, WeightUse::kMatrix, weights.value));
  SWITCHYARD_RETURN_IF_ERROR(visit(tensors.output, WeightUse::kMatrix, to.attention_output));
  SWITCHYARD_RETURN_IF_ERROR(visit(tensors.query_norm, WeightUse::kVector, weights.query_norm));
  SWITCHYARD_RETURN_IF_ERROR(visit(tensors.key_norm, WeightUse::kVector, weights.key_norm));
  if (from.compress_ratio == 0) return absl::OkStatus();  // an indexer would not be used
  SWITCHYARD_RETURN_IF_ERROR(visit(tensors.index_query, WeightUse::kMatrix, weights.index_query));
  SWITCHYARD_RETURN_IF_ERROR(visit(tensors.index_key, WeightUse::kMatrix, weights.index_key));
  SWITCHYARD_RETURN_IF_ERROR(
      visit(tensors.index_query_norm, WeightUse::kVector, weights.index_query_norm));
  return visit(tensors.index_key_norm, WeightUse::kVector, weights.index_key_norm);
}

template <typename Visit>
absl::Status VisitDeltaNet(const model::DeltaNetSpec& spec, const model::DeltaNetTensors& from,
                           kernels::DeltaNetWeights& to, Visit& visit) {
  RowSelection qkv = from.qkv, gate = from.gate, beta = from.beta, alpha = from.alpha;
  const int64_t ratio = spec.num_value_heads / spec.num_key_heads;
  const int64_t dim = spec.head_dim;
  if (from.qkv_gate != nullptr) {
    const int64_t values = ratio * dim;
    const int64_t group_rows = 2 * dim + 2 * values;
    qkv = RowSelection(from.qkv_gate, group_rows, {{0, dim}, {dim, dim}, {2 * dim, values}});
    gate = RowSelection(from.qkv_gate, group_rows, {{2 * dim + values, values}});
  }
  if (from.beta_alpha != nullptr) {
    beta = RowSelection(from.beta_alpha, 2 * ratio, {{0, ratio}});
    alpha = RowSelection(from.beta_alpha, 2 * ratio, {{ratio, ratio}});
  }
  SWITCHYARD_RETURN_IF_ERROR(visit(qkv, WeightUse::kMatrix, to.qkv));
  SWITCHYARD_RETURN_IF_ERROR(visit(gate, WeightUse::kMatrix, to.gate));
  SWITCHYARD_RETURN_IF_ERROR(visit(beta, WeightUse::kMatrix, to.beta));
  SWITCHYARD_RETURN_IF_ERROR(visit(alpha, WeightUse::kMatrix, to.alpha));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.conv, WeightUse::kConvTaps, to.conv));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.a, WeightUse::kVector, to.a));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.dt_bias, WeightUse::kVector, to.dt_bias));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.norm, WeightUse::kVector, to.norm));
  return visit(from.output, WeightUse::kMatrix, to.output);
}

template <typename Visit>
absl::Status VisitMoe(const model::MoeTensors& from, LayerWeights& to, Visit& visit) {
  SWITCHYARD_RETURN_IF_ERROR(visit(from.router, WeightUse::kMatrix, to.router));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.gate, WeightUse::kMatrix, to.moe.gate));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.up, WeightUse::kMatrix, to.moe.up));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.gate_up, WeightUse::kMatrix, to.moe.gate_up));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.down, WeightUse::kMatrix, to.moe.down));
  SWITCHYARD_RETURN_IF_ERROR(
      visit(from.shared_gate_input, WeightUse::kVector, to.moe.shared_gate_input));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.shared_gate, WeightUse::kMatrix, to.moe.shared_gate));
  SWITCHYARD_RETURN_IF_ERROR(visit(from.shared_up, WeightUse::kMatrix, to.moe.shared_up));
  return visit(from.shared_down, WeightUse::kMatrix, to.moe.shared_down);
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
absl::Status VisitModel(const model::ModelSpec& spec, ModelWeights& weights, Visit visit) {
  SWITCHYARD_RETURN_IF_ERROR(
      visit(spec.token_embedding, WeightUse::kRowTable, weights.token_embedding));
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    const model::LayerSpec& layer = spec.layers[l];
    LayerWeights& to = weights.layers[l];
    if (spec.ple.has_value() && spec.ple->layer == static_cast<int>(l)) {
      SWITCHYARD_RETURN_IF_ERROR(VisitPle(spec.ple->tensors, weights.ple, visit));
    }
    SWITCHYARD_RETURN_IF_ERROR(VisitMixer(layer.mixer, to.mixer, visit));
    if (layer.kind == model::LayerKind::kAttention) {
      SWITCHYARD_RETURN_IF_ERROR(VisitAttention(layer, to, visit));
    } else {
      SWITCHYARD_RETURN_IF_ERROR(
          VisitDeltaNet(*spec.delta_net, layer.delta_net, to.delta_net, visit));
    }
    SWITCHYARD_RETURN_IF_ERROR(VisitMixer(layer.moe_mixer, to.moe_mixer, visit));
    SWITCHYARD_RETURN_IF_ERROR(VisitMoe(layer.moe, to, visit));
  }
  SWITCHYARD_RETURN_IF_ERROR(VisitMixer(spec.final_mixer, weights.final_mixer, visit));
  if (spec.is_output_tied()) {
    weights.output = weights.token_embedding;
    return absl::OkStatus();
  }
  return visit(spec.output, WeightUse::kMatrix, weights.output);
}

static_assert(model::kMaxShardStrips <= kernels::kMaxShardStrips);

kernels::ShardBorders Borders(const model::ColumnShards& shards) {
  return {.border = shards.border,
          .num_strips = shards.num_strips,
          .strip_columns = shards.strip_columns};
}

kernels::AttentionShape MakeAttentionShape(const model::ModelSpec& spec,
                                           const model::LayerSpec& layer) {
  const model::AttentionSpec& attention = spec.attention;
  kernels::AttentionShape shape;
  shape.num_heads = attention.num_heads;
  shape.num_kv_heads = attention.num_kv_heads;
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

kernels::DeltaNetShape MakeDeltaNetShape(const model::ModelSpec& spec) {
  const model::DeltaNetSpec& delta_net = *spec.delta_net;
  kernels::DeltaNetShape shape;
  shape.num_key_heads = delta_net.num_key_heads;
  shape.num_value_heads = delta_net.num_value_heads;
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

// What a stage must know beside the tensors.
void SetShapes(const model::ModelSpec& spec, ModelWeights& weights) {
  SetMixerShape(spec, weights.final_mixer);
  weights.layers.resize(spec.layers.size());
  for (size_t l = 0; l < spec.layers.size(); ++l) {
    const model::LayerSpec& layer = spec.layers[l];
    LayerWeights& to = weights.layers[l];
    to.kind = layer.kind;
    SetMixerShape(spec, to.mixer);
    SetMixerShape(spec, to.moe_mixer);
    if (layer.kind == model::LayerKind::kAttention) {
      to.attention_shape = MakeAttentionShape(spec, layer);
      to.attention_output_shards = Borders(layer.output_shards);
    } else {
      to.delta_net_shape = MakeDeltaNetShape(spec);
      to.delta_net.output_shards = Borders(layer.output_shards);
    }
    to.moe.down_shards = Borders(layer.down_shards);
    to.moe.shared_down_shards = Borders(layer.shared_down_shards);
  }
  if (!spec.ple.has_value()) return;
  weights.ple_shape.num_streams = spec.num_residual_streams;
  weights.ple_shape.conv_kernel = spec.ple->conv_kernel;
  weights.ple_shape.dilation = spec.ple->ngram_size;
  weights.ple_shape.rms_epsilon = spec.rms_epsilon;
}

}  // namespace

int64_t LoadedFileBytes(const model::ModelSpec& spec) {
  ModelWeights weights;
  weights.layers.resize(spec.layers.size());
  int64_t bytes = 0;
  const absl::Status status =
      VisitModel(spec, weights, [&](const RowSelection& rows, WeightUse, const kernels::Weight*&) {
        if (rows.tensor() != nullptr) bytes += rows.bytes();
        return absl::OkStatus();
      });
  SWITCHYARD_CHECK(status.ok());
  return bytes;
}

absl::StatusOr<ModelWeights> LoadWeights(const model::GgufFile& file, const model::ModelSpec& spec,
                                         kernels::Backend& backend, const LoadProgress& progress) {
  const int64_t total_bytes = LoadedFileBytes(spec);
  ModelWeights weights;
  SetShapes(spec, weights);
  std::vector<kernels::WeightRequest> requests;
  const auto request = [&](const RowSelection& rows, WeightUse use,
                           const kernels::Weight*&) -> absl::Status {
    if (rows.tensor() == nullptr) return absl::OkStatus();
    requests.push_back({file.View(*rows.tensor()), use});
    requests.back().view.rows = rows.num_rows();
    return absl::OkStatus();
  };
  SWITCHYARD_RETURN_IF_ERROR(VisitModel(spec, weights, request));
  SWITCHYARD_RETURN_IF_ERROR(backend.ReserveWeights(requests));
  int64_t done_bytes = 0;
  const auto load = [&](const RowSelection& rows, WeightUse use,
                        const kernels::Weight*& target) -> absl::Status {
    if (rows.tensor() == nullptr) return absl::OkStatus();
    const model::TensorInfo& tensor = *rows.tensor();
    kernels::WeightSource source;
    source.name = tensor.name;
    source.view = file.View(tensor);
    source.view.rows = rows.num_rows();
    source.read = [&](int64_t first, int64_t count, std::byte* out) {
      return rows.ForEachStretch(first, count, [&](int64_t file_row, int64_t num_rows) {
        std::byte* const begin = out;
        const auto bytes = static_cast<size_t>(num_rows * tensor.row_bytes());
        out += bytes;
        return file.Read(tensor, file_row, num_rows, absl::MakeSpan(begin, bytes));
      });
    };
    absl::StatusOr<std::unique_ptr<kernels::Weight>> weight = backend.LoadWeight(source, use);
    if (!weight.ok()) return weight.status();
    target = weight->get();
    weights.owned.push_back(*std::move(weight));
    done_bytes += rows.bytes();
    return progress ? progress(done_bytes, total_bytes) : absl::OkStatus();
  };
  SWITCHYARD_RETURN_IF_ERROR(VisitModel(spec, weights, load));
  SWITCHYARD_RETURN_IF_ERROR(file.CheckUnchanged());
  return weights;
}

}  // namespace switchyard::worker
