#include "app/placement_options.h"

#include <fmt/format.h>

#include "app/exit_code.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "placement/placement.h"

namespace switchyard::app {
namespace {

absl::StatusOr<placement::PlacementWish> WishOf(const ModelOptions& options, int num_workers) {
  placement::PlacementWish wish;
  wish.world_size = num_workers;
  const std::string mode = options.mode.empty() ? "layer_split" : options.mode;
  wish.mode = *placement::ModeFromName(mode);  // flags are checked when they are read
  const bool divides_experts = mode == "expert_parallel" || mode == "tensor_expert_parallel";
  if (!options.partition.empty()) {
    if (!divides_experts) {
      return InvalidArgument("--partition is for expert_parallel, --mode: {}", mode);
    }
    wish.partition = *placement::PartitionFromName(options.partition);
  }
  if (!options.dense.empty()) {
    if (mode != "expert_parallel") {
      return InvalidArgument("--dense is for expert_parallel, --mode: {}", mode);
    }
    wish.dense = options.dense == "owner" ? placement::v1::DENSE_PART_OWNER
                                          : placement::v1::DENSE_PART_REPLICATED;
  }
  wish.layer_cuts = options.layer_cuts;
  return wish;
}

}  // namespace

absl::StatusOr<placement::v1::Placement> PlacementFor(const model::ModelSpec& spec,
                                                      const ModelOptions& options,
                                                      int num_workers) {
  const auto make = [&]() -> absl::StatusOr<placement::v1::Placement> {
    SWITCHYARD_ASSIGN_OR_RETURN(const placement::PlacementWish wish, WishOf(options, num_workers));
    return placement::MakePlacement(spec, wish);
  };
  auto placement = make();
  if (!placement.ok()) return WithExitCode(placement.status(), ExitCode::kUsage);
  return placement;
}

std::string PlanId(const placement::v1::Placement& placement) {
  std::string id =
      fmt::format("{}-{}", placement::ModeName(placement.mode()), placement.world_size());
  for (const uint32_t cut : placement.layer_cuts()) id += fmt::format("-{}", cut);
  if (placement.partition() != placement::v1::PARTITION_UNSPECIFIED) {
    id += fmt::format("-{}", placement::PartitionName(placement.partition()));
  }
  if (placement.mode() == placement::v1::MODE_EXPERT_PARALLEL) {
    id += placement.dense() == placement::v1::DENSE_PART_OWNER ? "-owner" : "-replicated";
  }
  return id;
}

}  // namespace switchyard::app
