// Planner: which placements a machine can run, how fast each would be, and why.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/cost_model.h"

namespace switchyard::placement {

enum class Goal {
  kLatency,     // least time of a token of one sequence
  kContext,     // the longest context, then the least time
  kThroughput,  // most tokens a second of several sequences
};
std::string_view GoalName(Goal goal);
std::optional<Goal> GoalFromName(std::string_view name);

struct PlanRequest {
  Goal goal = Goal::kLatency;
  std::optional<DeviceKind> device;  // absent: GPUs if the profile has any, else the CPU
  std::vector<int> worker_counts;    // empty: 1 to 4, as far as there are devices
  int threads_per_worker = 0;        // CPU; 0 = the cores divided by the number of workers
  int64_t context_tokens = 8192;     // that each sequence must fit, and has when it is timed
  double num_sequences = 0;          // 0 = 8 for kThroughput, else 1
  double window_rows = 1;            // drafting: as in DecodeShape
  double tokens_per_pass = 1;
  double chunk_tokens = 512;
  ExpertUse expert_use;
  std::string backend;  // of collectives; empty = the fastest in the profile
  // Kept free on each device and host: contexts of libraries, workspaces, what else runs.
  int64_t device_reserve_bytes = int64_t{1} << 30;
  double host_reserve_share = 0.1;
};

// What a rank's memory holds, in bytes.
struct RankMemory {
  int64_t dense_bytes = 0;
  int64_t resident_expert_bytes = 0;
  int64_t expert_bytes = 0;  // resident or not
  int64_t cache_bytes = 0;   // keys, values and states of all sequences
  int64_t device_bytes = 0;  // that there are; of a CPU worker its share of the host
};

struct Plan {
  v1::Placement placement;
  int num_workers = 1;
  DeviceKind device = DeviceKind::kCpu;
  int threads_per_worker = 0;

  bool can_run = false;
  // One line: why it cannot run, why it is the best, or by what it loses.
  std::string reason;

  // Of plans that can run.
  std::vector<RankMemory> memory;   // by rank
  double resident_share = 1;        // of all experts, in fast memory
  int64_t most_context_tokens = 0;  // that would fit each sequence, the model's own limit at most
  StepCost decode;
  double tokens_per_second = 0;          // of all sequences
  double prefill_tokens_per_second = 0;  // 0 = not known
  CostTerm limiting = CostTerm::kDense;  // the largest term of a decode step
  std::string backend;                   // of the collectives
};

// "tensor_expert_parallel sliced, 2 workers" and so on; "single" with one.
std::string PlanName(const Plan& plan);

// All modes, partitions and dense parts for the wanted numbers of workers: those that can run in
// the order of the goal, then those that cannot. Never leaves one out.
//
// Errors: kInvalidArgument (a context that the model does not have, a number of workers out of
//         range), kFailedPrecondition (a profile without the rates that any plan needs).
absl::StatusOr<std::vector<Plan>> MakePlans(const model::ModelSpec& spec,
                                            const v1::HardwareProfile& profile,
                                            const PlanRequest& request);

// The plans behind two names: FAST is the quickest on one device with a context of 128K tokens (or
// the model's, if that is shorter), LONG the quickest on several with 200K. Absent where none can
// run.
struct NamedPlans {
  std::optional<Plan> fast;
  std::optional<Plan> large_context;
};
absl::StatusOr<NamedPlans> MakeNamedPlans(const model::ModelSpec& spec,
                                          const v1::HardwareProfile& profile,
                                          const PlanRequest& request);

}  // namespace switchyard::placement
