#include "placement/placement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <fmt/format.h>
#include <limits>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "base/status_macros.h"
#include "model/model_summary.h"
#include "placement/rank_share.h"

namespace switchyard::placement {
namespace {

struct NamedMode {
  v1::Mode mode;
  std::string_view name;
};
constexpr std::array<NamedMode, 4> kModes = {{
    {v1::MODE_SINGLE, "single"},
    {v1::MODE_LAYER_SPLIT, "layer_split"},
    {v1::MODE_EXPERT_PARALLEL, "expert_parallel"},
    {v1::MODE_TENSOR_EXPERT_PARALLEL, "tensor_expert_parallel"},
}};

bool DividesExperts(v1::Mode mode) {
  return mode == v1::MODE_EXPERT_PARALLEL || mode == v1::MODE_TENSOR_EXPERT_PARALLEL;
}

absl::Status CheckWorldSize(int64_t world_size) {
  if (world_size >= 1 && world_size <= kMaxWorldSize) return absl::OkStatus();
  return InvalidArgument("number of workers is out of range: {}, wanted: 1 to {}", world_size,
                         kMaxWorldSize);
}

// ---- layer split ----------------------------------------------------------------------------

absl::Status CheckCuts(const model::ModelSpec& spec, int world_size, absl::Span<const int> cuts) {
  if (world_size > spec.num_layers) {
    return InvalidArgument("more workers than layers: {}, layers: {}; at most {} workers",
                           world_size, spec.num_layers, spec.num_layers);
  }
  if (static_cast<int>(cuts.size()) != world_size - 1) {
    return InvalidArgument("layer split of {} workers wants {} cut points, got: {}", world_size,
                           world_size - 1, cuts.size());
  }
  int last = 0;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const int most = spec.num_layers - static_cast<int>(cuts.size() - i);
    if (cuts[i] <= last || cuts[i] > most) {
      return InvalidArgument("cut point leaves a worker without layers: {}, wanted here: {} to {}",
                             cuts[i], last + 1, most);
    }
    last = cuts[i];
  }
  return absl::OkStatus();
}

// The cuts whose largest stage is smallest; of several, those with the earliest cuts.
std::vector<int> CutsByBytes(const std::vector<int64_t>& layer_bytes, int64_t head_bytes,
                             int world_size) {
  const auto num_layers = static_cast<int>(layer_bytes.size());
  std::vector<int64_t> sum(layer_bytes.size() + 1, 0);
  std::partial_sum(layer_bytes.begin(), layer_bytes.end(), sum.begin() + 1);
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  // best[n][l]: largest stage when layers [l, num_layers) are divided over n ranks.
  const auto n_ranks = static_cast<size_t>(world_size);
  std::vector<std::vector<int64_t>> best(
      n_ranks + 1, std::vector<int64_t>(static_cast<size_t>(num_layers) + 1, kNever));
  std::vector<std::vector<int>> first_cut(n_ranks + 1,
                                          std::vector<int>(static_cast<size_t>(num_layers) + 1, 0));
  for (int l = 0; l < num_layers; ++l) {
    best[1][static_cast<size_t>(l)] = sum.back() - sum[static_cast<size_t>(l)] + head_bytes;
  }
  for (size_t n = 2; n <= n_ranks; ++n) {
    for (int l = 0; l + static_cast<int>(n) <= num_layers; ++l) {
      for (int cut = l + 1; cut < num_layers; ++cut) {
        const int64_t rest = best[n - 1][static_cast<size_t>(cut)];
        if (rest == kNever) continue;
        const int64_t stage = sum[static_cast<size_t>(cut)] - sum[static_cast<size_t>(l)];
        const int64_t worst = std::max(stage, rest);
        if (worst >= best[n][static_cast<size_t>(l)]) continue;
        best[n][static_cast<size_t>(l)] = worst;
        first_cut[n][static_cast<size_t>(l)] = cut;
      }
    }
  }
  std::vector<int> cuts;
  int l = 0;
  for (size_t n = n_ranks; n > 1; --n) {
    l = first_cut[n][static_cast<size_t>(l)];
    cuts.push_back(l);
  }
  return cuts;
}

// ---- divided experts --------------------------------------------------------------------------

// What works in spite of a matrix that has too few units.
enum class Instead {
  kWholeExperts,    // the same mode with whole experts
  kDividesExperts,  // expert parallel with whole experts
};

absl::Status CheckUnits(const model::ModelSpec& spec, const model::TensorRef tensor,
                        const model::ColumnShards& shards, int world_size, Instead instead) {
  if (tensor == nullptr || shards.num_units() >= world_size) return absl::OkStatus();
  const int64_t most = shards.num_units();
  return InvalidArgument(
      "tensor cannot be cut for {} workers: {}, {} columns in blocks of {} of type {} give {} "
      "slice{}; at most {} worker{}, or up to {} with {}whole experts",
      world_size, tensor->name, tensor->row_elements(), Traits(tensor->dtype).block_length,
      Traits(tensor->dtype).name, most, most == 1 ? "" : "s", most, most == 1 ? "" : "s",
      spec.moe.num_experts, instead == Instead::kDividesExperts ? "expert_parallel and " : "");
}

absl::Status CheckSlices(const model::ModelSpec& spec, int world_size, Instead instead) {
  for (const model::LayerSpec& layer : spec.layers) {
    SWITCHYARD_RETURN_IF_ERROR(
        CheckUnits(spec, layer.moe.down, layer.down_shards, world_size, instead));
    SWITCHYARD_RETURN_IF_ERROR(
        CheckUnits(spec, layer.moe.shared_down, layer.shared_down_shards, world_size, instead));
  }
  return absl::OkStatus();
}

absl::Status CheckHeads(const model::ModelSpec& spec, int world_size) {
  for (const model::LayerSpec& layer : spec.layers) {
    const model::TensorRef output = layer.kind == model::LayerKind::kAttention
                                        ? layer.attention.output
                                        : layer.delta_net.output;
    SWITCHYARD_RETURN_IF_ERROR(
        CheckUnits(spec, output, layer.output_shards, world_size, Instead::kDividesExperts));
  }
  return absl::OkStatus();
}

// Homes of one layer: the most used expert goes to the rank with the least use so far, among those
// that have room, since memory is divided evenly.
std::string HomesByUse(const std::vector<double>& use, int world_size) {
  const size_t num_experts = use.size();
  std::vector<size_t> order(num_experts);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return use[a] > use[b]; });
  const auto ranks = static_cast<size_t>(world_size);
  std::vector<double> load(ranks, 0);
  std::vector<size_t> held(ranks, 0);
  std::string homes(num_experts, '\0');
  for (size_t i = 0; i < num_experts; ++i) {
    const size_t room = (num_experts + ranks - 1) / ranks;
    size_t best = ranks;
    for (size_t r = 0; r < ranks; ++r) {
      if (held[r] == room) continue;
      if (best == ranks || load[r] < load[best] ||
          (load[r] == load[best] && held[r] < held[best])) {
        best = r;
      }
    }
    homes[order[i]] = static_cast<char>(best);
    load[best] += use[order[i]];
    ++held[best];
  }
  return homes;
}

absl::Status CheckHomes(const model::ModelSpec& spec, const v1::Placement& placement) {
  if (placement.expert_homes_size() != spec.num_layers) {
    return InvalidArgument("homes of experts are missing: expert_homes, got: {}, layers: {}",
                           placement.expert_homes_size(), spec.num_layers);
  }
  for (const v1::ExpertHomes& homes : placement.expert_homes()) {
    const std::string& ranks = homes.rank_of_expert();
    const bool fits = ranks.size() == static_cast<size_t>(spec.moe.num_experts) &&
                      std::all_of(ranks.begin(), ranks.end(), [&](char rank) {
                        return static_cast<unsigned char>(rank) < placement.world_size();
                      });
    if (!fits) {
      return InvalidArgument(
          "homes of experts do not fit: rank_of_expert, wanted: {} ranks below {}",
          spec.moe.num_experts, placement.world_size());
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view ModeName(v1::Mode mode) {
  for (const NamedMode& named : kModes) {
    if (named.mode == mode) return named.name;
  }
  return "unspecified";
}

std::optional<v1::Mode> ModeFromName(std::string_view name) {
  for (const NamedMode& named : kModes) {
    if (named.name == name) return named.mode;
  }
  return std::nullopt;
}

std::string_view PartitionName(v1::Partition partition) {
  return partition == v1::PARTITION_WHOLE    ? "whole"
         : partition == v1::PARTITION_SLICED ? "sliced"
                                             : "unspecified";
}

std::optional<v1::Partition> PartitionFromName(std::string_view name) {
  if (name == "whole") return v1::PARTITION_WHOLE;
  if (name == "sliced") return v1::PARTITION_SLICED;
  return std::nullopt;
}

std::string Describe(const v1::Placement& placement) {
  std::string text(ModeName(placement.mode()));
  if (placement.mode() == v1::MODE_SINGLE) return text;
  if (DividesExperts(placement.mode())) {
    text += fmt::format(" {}", PartitionName(placement.partition()));
  }
  text += fmt::format(", {} workers", placement.world_size());
  if (placement.mode() == v1::MODE_LAYER_SPLIT) {
    text += fmt::format(", cut at {}", fmt::join(placement.layer_cuts(), ","));
  }
  if (placement.mode() == v1::MODE_EXPERT_PARALLEL) {
    text += placement.dense() == v1::DENSE_PART_OWNER ? ", dense part on rank 0"
                                                      : ", dense part replicated";
  }
  return text;
}

int LeadRank(const v1::Placement& placement) {
  return placement.mode() == v1::MODE_LAYER_SPLIT ? static_cast<int>(placement.world_size()) - 1
                                                  : 0;
}

absl::StatusOr<v1::Placement> MakePlacement(const model::ModelSpec& spec,
                                            const PlacementWish& wish) {
  SWITCHYARD_RETURN_IF_ERROR(CheckWorldSize(wish.world_size));
  v1::Placement placement;
  placement.set_world_size(static_cast<uint32_t>(wish.world_size));
  if (wish.world_size == 1) {
    if (!wish.layer_cuts.empty()) {
      return InvalidArgument("one worker has all layers: {} cut points are too many",
                             wish.layer_cuts.size());
    }
    placement.set_mode(v1::MODE_SINGLE);
    return placement;
  }
  placement.set_mode(wish.mode);
  if (!wish.layer_cuts.empty() && wish.mode != v1::MODE_LAYER_SPLIT) {
    return InvalidArgument("cut points are for layer_split, mode: {}", ModeName(wish.mode));
  }
  if (wish.mode == v1::MODE_LAYER_SPLIT) {
    std::vector<int> cuts = wish.layer_cuts;
    if (cuts.empty() && wish.world_size <= spec.num_layers) {
      const model::ModelSummary summary = model::Summarize(spec);
      std::vector<int64_t> bytes;
      for (const model::LayerBytes& layer : summary.layers) {
        bytes.push_back(layer.dense_bytes + layer.bytes_per_expert * spec.moe.top_k);
      }
      cuts = CutsByBytes(bytes, spec.output->bytes(), wish.world_size);
    }
    SWITCHYARD_RETURN_IF_ERROR(CheckCuts(spec, wish.world_size, cuts));
    for (const int cut : cuts) placement.add_layer_cuts(static_cast<uint32_t>(cut));
  }
  if (DividesExperts(wish.mode)) {
    placement.set_partition(wish.partition == v1::PARTITION_UNSPECIFIED ? v1::PARTITION_SLICED
                                                                        : wish.partition);
  }
  if (wish.mode == v1::MODE_EXPERT_PARALLEL) {
    placement.set_dense(wish.dense == v1::DENSE_PART_UNSPECIFIED ? v1::DENSE_PART_REPLICATED
                                                                 : wish.dense);
  }
  if (placement.partition() == v1::PARTITION_WHOLE) {
    const auto num_experts = static_cast<size_t>(spec.moe.num_experts);
    for (int l = 0; l < spec.num_layers; ++l) {
      const bool is_known = static_cast<size_t>(l) < wish.expert_use.size() &&
                            wish.expert_use[static_cast<size_t>(l)].size() == num_experts;
      placement.add_expert_homes()->set_rank_of_expert(
          HomesByUse(is_known ? wish.expert_use[static_cast<size_t>(l)]
                              : std::vector<double>(num_experts, 1.0),
                     wish.world_size));
    }
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckPlacement(spec, placement));
  return placement;
}

absl::Status CheckPlacement(const model::ModelSpec& spec, const v1::Placement& placement) {
  SWITCHYARD_RETURN_IF_ERROR(CheckWorldSize(placement.world_size()));
  const auto world_size = static_cast<int>(placement.world_size());
  const bool is_whole = placement.partition() == v1::PARTITION_WHOLE;
  if (DividesExperts(placement.mode()) && !is_whole &&
      placement.partition() != v1::PARTITION_SLICED) {
    return InvalidArgument("experts must be whole or sliced: partition, got: {}",
                           static_cast<int>(placement.partition()));
  }
  switch (placement.mode()) {
    case v1::MODE_SINGLE:
      if (world_size == 1) return absl::OkStatus();
      return InvalidArgument(
          "mode single has one worker, got: {}; several work as layer_split, expert_parallel or "
          "tensor_expert_parallel",
          world_size);
    case v1::MODE_LAYER_SPLIT: {
      const std::vector<int> cuts(placement.layer_cuts().begin(), placement.layer_cuts().end());
      return CheckCuts(spec, world_size, cuts);
    }
    case v1::MODE_TENSOR_EXPERT_PARALLEL:
      if (is_whole) {
        return InvalidArgument(
            "tensor_expert_parallel divides every expert: partition, got: whole, wanted: sliced");
      }
      SWITCHYARD_RETURN_IF_ERROR(CheckHeads(spec, world_size));
      return CheckSlices(spec, world_size, Instead::kDividesExperts);
    case v1::MODE_EXPERT_PARALLEL:
      if (placement.dense() != v1::DENSE_PART_REPLICATED &&
          placement.dense() != v1::DENSE_PART_OWNER) {
        return InvalidArgument("dense part must be replicated or owner: dense, got: {}",
                               static_cast<int>(placement.dense()));
      }
      if (!is_whole) return CheckSlices(spec, world_size, Instead::kWholeExperts);
      if (world_size > spec.moe.num_experts) {
        return InvalidArgument("more workers than experts: {}, experts: {}; at most {} workers",
                               world_size, spec.moe.num_experts, spec.moe.num_experts);
      }
      return CheckHomes(spec, placement);
    default:
      return InvalidArgument("mode is unknown: {}", static_cast<int>(placement.mode()));
  }
}

}  // namespace switchyard::placement
