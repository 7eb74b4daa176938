#include "placement/rank_share.h"

#include <algorithm>

#include "base/check.h"

namespace switchyard::placement {
namespace {

// Part `rank` of `count` things divided over `world_size` ranks. The borders of two and four ranks
// are borders of virtual shards, which are cut by the same formula.
Range PartOf(int64_t count, int rank, int world_size) {
  return {rank * count / world_size, (rank + 1) * count / world_size};
}

ColumnShare WholeColumns(const model::ColumnShards& shards) {
  return {{0, shards.strip_columns}, shards};
}

ColumnShare SliceOf(const model::ColumnShards& shards, int rank, int world_size) {
  const Range units = PartOf(shards.num_units(), rank, world_size);
  return {{units.begin * shards.unit_columns, units.end * shards.unit_columns}, shards};
}

class ShareMaker {
 public:
  ShareMaker(const model::ModelSpec& spec, const v1::Placement& placement, int rank)
      : spec_(spec),
        placement_(placement),
        rank_(rank),
        world_size_(static_cast<int>(placement.world_size())) {}

  RankShare Make() const {
    RankShare share;
    share.rank = rank_;
    share.world_size = world_size_;
    share.mode = placement_.mode();
    share.lead_rank = LeadRank(placement_);
    share.is_lead = rank_ == share.lead_rank;
    share.end_layer = spec_.num_layers;
    share.has_embedding = true;
    share.output_rows = {0, spec_.vocab_size};
    const bool is_owner_mode =
        placement_.mode() == v1::MODE_EXPERT_PARALLEL && placement_.dense() == v1::DENSE_PART_OWNER;
    switch (placement_.mode()) {
      case v1::MODE_LAYER_SPLIT:
        if (rank_ > 0) share.first_layer = static_cast<int>(placement_.layer_cuts(rank_ - 1));
        if (rank_ + 1 < world_size_) {
          share.end_layer = static_cast<int>(placement_.layer_cuts(rank_));
        }
        share.has_embedding = rank_ == 0;
        if (!share.is_lead) share.output_rows = {};
        break;
      case v1::MODE_TENSOR_EXPERT_PARALLEL:
        share.after_mixing = share.after_experts = Meeting::kAllReduce;
        share.output_rows = OutputRowsOf(spec_.vocab_size, rank_, world_size_);
        break;
      case v1::MODE_EXPERT_PARALLEL:
        share.after_experts = is_owner_mode ? Meeting::kOwner : Meeting::kAllReduce;
        share.has_embedding = !is_owner_mode || rank_ == 0;
        share.output_rows = is_owner_mode ? (rank_ == 0 ? share.output_rows : Range{})
                                          : OutputRowsOf(spec_.vocab_size, rank_, world_size_);
        break;
      default:
        break;
    }
    for (int l = 0; l < spec_.num_layers; ++l) {
      LayerShare& layer = share.layers.emplace_back();
      layer.is_here = l >= share.first_layer && l < share.end_layer;
      if (!layer.is_here) continue;
      layer.has_dense = !is_owner_mode || rank_ == 0;
      if (layer.has_dense) SetDense(spec_.layers[static_cast<size_t>(l)], layer);
      SetExperts(l, layer);
    }
    return share;
  }

 private:
  void SetDense(const model::LayerSpec& spec, LayerShare& layer) const {
    const bool divides = placement_.mode() == v1::MODE_TENSOR_EXPERT_PARALLEL;
    layer.output = divides ? SliceOf(spec.output_shards, rank_, world_size_)
                           : WholeColumns(spec.output_shards);
    const Range columns = layer.output.columns;
    if (spec.kind == model::LayerKind::kAttention) {
      const model::AttentionSpec& attention = spec_.attention;
      layer.query_heads = {columns.begin / attention.head_dim, columns.end / attention.head_dim};
      const int64_t per_kv = attention.num_heads / attention.num_kv_heads;
      layer.kv_heads = {layer.query_heads.begin / per_kv, (layer.query_heads.end - 1) / per_kv + 1};
    } else {
      const model::DeltaNetSpec& delta_net = *spec_.delta_net;
      // A strip has one column block for each key head, of one value head or of all of them.
      const int64_t head_columns = spec.output_shards.strip_columns / delta_net.num_key_heads;
      layer.key_heads = {columns.begin / head_columns, columns.end / head_columns};
    }
  }

  void SetExperts(int l, LayerShare& layer) const {
    const model::LayerSpec& spec = spec_.layers[static_cast<size_t>(l)];
    layer.has_experts = true;
    layer.has_shared_expert = spec.moe.shared_down != nullptr;
    layer.inner = WholeColumns(spec.down_shards);
    layer.shared_inner = WholeColumns(spec.shared_down_shards);
    if (placement_.partition() == v1::PARTITION_SLICED) {
      layer.inner = SliceOf(spec.down_shards, rank_, world_size_);
      if (layer.has_shared_expert) {
        layer.shared_inner = SliceOf(spec.shared_down_shards, rank_, world_size_);
      }
    } else if (placement_.partition() == v1::PARTITION_WHOLE) {
      const std::string& homes = placement_.expert_homes(l).rank_of_expert();
      layer.has_all_experts = false;
      for (size_t e = 0; e < homes.size(); ++e) {
        if (static_cast<unsigned char>(homes[e]) == rank_) {
          layer.experts.push_back(static_cast<int32_t>(e));
        }
      }
      layer.has_experts = !layer.experts.empty();
      // Counted once: a rank in turn has it.
      layer.has_shared_expert = layer.has_shared_expert && l % world_size_ == rank_;
    }
  }

  const model::ModelSpec& spec_;
  const v1::Placement& placement_;
  const int rank_;
  const int world_size_;
};

}  // namespace

model::ColumnShards ColumnShare::local() const {
  model::ColumnShards local = shards;
  for (int64_t& border : local.border) {
    border = std::clamp(border, columns.begin, columns.end) - columns.begin;
  }
  local.strip_columns = columns.size();
  return local;
}

Range OutputRowsOf(int64_t vocab_size, int rank, int world_size) {
  return PartOf(vocab_size, rank, world_size);
}

RankShare ShareOf(const model::ModelSpec& spec, const v1::Placement& placement, int rank) {
  SWITCHYARD_CHECK(rank >= 0 && rank < static_cast<int>(placement.world_size()));
  return ShareMaker(spec, placement, rank).Make();
}

}  // namespace switchyard::placement
