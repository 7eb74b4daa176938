#include "app/plan/planned_options.h"

#include <algorithm>

#include "app/exit_code.h"
#include "app/plan/stored_profile.h"
#include "base/log.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "placement/planner.h"

namespace switchyard::app {
namespace {

absl::StatusOr<placement::Plan> BestPlan(const model::ModelSpec& spec, const std::string& goal,
                                         const std::string& profile_path, int64_t context_tokens,
                                         int num_threads) {
  SWITCHYARD_ASSIGN_OR_RETURN(const auto profile, LoadProfile(profile_path));
  placement::PlanRequest request;
  request.goal = *placement::GoalFromName(goal);  // flags are checked when they are read
  request.device = placement::DeviceKind::kCpu;
  request.context_tokens = context_tokens;
  request.threads_per_worker = num_threads;
  SWITCHYARD_ASSIGN_OR_RETURN(const auto plans, placement::MakePlans(spec, profile, request));
  if (plans.empty()) return FailedPrecondition("the profile knows no plan for this model");
  if (!plans.front().can_run) {
    return FailedPrecondition("no plan can run: {}, {}", placement::PlanName(plans.front()),
                              plans.front().reason);
  }
  return plans.front();
}

}  // namespace

absl::Status ApplyPlan(const model::ModelSpec& spec, const std::string& goal,
                       const std::string& profile_path, int64_t context_tokens,
                       ModelOptions& options) {
  const auto plan = BestPlan(spec, goal, profile_path, context_tokens, options.num_threads);
  if (!plan.ok()) return WithExitCode(plan.status(), ExitCode::kUsage);
  LogInfo("plan for {}: {}, {:.1f} tokens/s predicted; {}", goal,
          placement::Describe(plan->placement), plan->tokens_per_second, plan->reason);
  const placement::v1::Placement& placement = plan->placement;
  options.num_workers = plan->num_workers > 1 ? plan->num_workers : 0;
  options.num_threads = plan->threads_per_worker;
  options.mode = std::string(placement::ModeName(placement.mode()));
  options.layer_cuts.assign(placement.layer_cuts().begin(), placement.layer_cuts().end());
  options.partition.clear();
  options.dense.clear();
  if (placement.partition() != placement::v1::PARTITION_UNSPECIFIED) {
    options.partition = std::string(placement::PartitionName(placement.partition()));
  }
  if (placement.mode() == placement::v1::MODE_EXPERT_PARALLEL) {
    options.dense = placement.dense() == placement::v1::DENSE_PART_OWNER ? "owner" : "replicated";
  }
  return absl::OkStatus();
}

}  // namespace switchyard::app
