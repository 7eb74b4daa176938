// Placement: which rank computes what. Made from a wish and the model, checked on both sides.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "switchyard/placement/v1/placement.pb.h"

#include "model/model_spec.h"

namespace switchyard::placement {

inline constexpr int kMaxWorldSize = 64;

// "layer_split" and so on, as in flags, logs and reports.
std::string_view ModeName(v1::Mode mode);
std::string_view PartitionName(v1::Partition partition);
std::optional<v1::Mode> ModeFromName(std::string_view name);
std::optional<v1::Partition> PartitionFromName(std::string_view name);

// "expert_parallel sliced, 2 workers, dense part replicated": one line for logs.
std::string Describe(const v1::Placement& placement);

// What somebody wants; absent parts are chosen.
struct PlacementWish {
  v1::Mode mode = v1::MODE_SINGLE;
  int world_size = 1;
  v1::Partition partition = v1::PARTITION_UNSPECIFIED;  // = sliced
  v1::DensePart dense = v1::DENSE_PART_UNSPECIFIED;     // = replicated
  std::vector<int> layer_cuts;                          // empty = by bytes
  // How often each expert is chosen, [num_layers][num_experts]; empty = alike. Homes of whole
  // experts balance it.
  std::vector<std::vector<double>> expert_use;
};

// Turns a wish into a placement. One worker gives `single`, whatever the mode.
//
// Errors: kInvalidArgument, naming what does not fit (cut points, more workers than layers or
//         slices, the tensor whose format forbids the cut) and the nearest thing that works.
absl::StatusOr<v1::Placement> MakePlacement(const model::ModelSpec& spec,
                                            const PlacementWish& wish);

// Whether every rank of `placement` has something to do in this model.
//
// Errors: as MakePlacement().
absl::Status CheckPlacement(const model::ModelSpec& spec, const v1::Placement& placement);

// The rank that has the output matrix, gets the plans and samples: the last one in layer split,
// else 0.
int LeadRank(const v1::Placement& placement);

}  // namespace switchyard::placement
