// From flags to a placement: who computes what, and what it is called.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "switchyard/placement/v1/placement.pb.h"

#include "app/model_options.h"
#include "model/model_spec.h"

namespace switchyard::app {

// The placement that `options` ask for, over `num_workers`. Without a mode several workers split
// the layers, which every model with as many layers allows; one worker always computes alone.
//
// Errors: kInvalidArgument with the exit code of usage: flags that do not go together, and what
//         this model does not allow, with the nearest thing that works.
absl::StatusOr<placement::v1::Placement> PlacementFor(const model::ModelSpec& spec,
                                                      const ModelOptions& options, int num_workers);

// "single-1", "layer_split-3-14-32", "expert_parallel-2-sliced-replicated": the same for the same
// placement, except that homes of whole experts are not told apart.
std::string PlanId(const placement::v1::Placement& placement);

}  // namespace switchyard::app
