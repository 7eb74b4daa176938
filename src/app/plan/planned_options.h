// Lets the planner choose how a model is served.
#pragma once

#include <string>

#include "absl/status/status.h"

#include "app/model_options.h"
#include "model/model_spec.h"

namespace switchyard::app {

// Sets workers, mode, partition, dense part, cuts and threads of `options` to those of the best
// plan for CPU workers of this machine, and logs why. `goal` is a placement::GoalName();
// `profile_path` as for LoadProfile(). One worker means this process.
//
// Errors: with the exit code of usage: no profile, none that is of use, no plan that can run.
absl::Status ApplyPlan(const model::ModelSpec& spec, const std::string& goal,
                       const std::string& profile_path, int64_t context_tokens,
                       ModelOptions& options);

}  // namespace switchyard::app
