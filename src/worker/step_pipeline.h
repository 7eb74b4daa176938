// The order of parts on the lead rank: what is prepared ahead, and when a plan ends.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "switchyard/worker/v1/step.pb.h"

#include "worker/step_executor.h"

namespace switchyard::worker {

// Where plans come from and results go to.
class PlanSource {
 public:
  virtual ~PlanSource() = default;
  // The plan that waits next; null = none. Stays valid until Take().
  virtual const v1::StepPlan* Peek() = 0;
  virtual v1::StepPlan Take() = 0;
  // Whether a plan may go on with another step: no newer one waits, and nothing is to end.
  virtual bool MayGoOn() = 0;
  virtual void Deliver(const v1::StepResult& result) = 0;
};

// Runs plans. With a depth of one: one step after the other. In a layer split of `depth` ranks up
// to so many parts are under way, so that every rank has something to do: the decoding slots of a
// plan are divided into so many groups, and a plan of which all rows are known, such as the next
// chunk of a prompt, begins before the one in front of it has ended. One sequence that decodes
// leaves nothing to overlap.
//
// Threads: the step thread.
class StepPipeline {
 public:
  // `executor` must outlive the object.
  StepPipeline(StepExecutor& executor, int depth) : executor_(executor), depth_(depth) {}

  // Takes the first plan and runs until nothing is left to run now. `idle_seconds`: how long the
  // step thread had waited for it.
  // REQUIRES: source.Peek() is not null.
  // Errors:   those of StepExecutor; failed_plan() and failed_step() say where. Of no use then
  // until
  //           Clear().
  absl::Status Run(PlanSource& source, double idle_seconds);

  // Forgets everything; the executor was reset.
  void Clear();

  // Of the oldest step that was not delivered.
  uint64_t failed_plan() const { return steps_.empty() ? 0 : steps_.front()->plan->plan(); }
  uint32_t failed_step() const { return steps_.empty() ? 0 : steps_.front()->step; }

 private:
  // A step of which parts are, or will be, under way.
  struct Step {
    std::shared_ptr<const v1::StepPlan> plan;
    uint32_t step = 0;
    v1::StepResult result;
    int num_prepared = 0;    // parts that have been looked at
    int num_unfinished = 0;  // of those that had something to do
    bool has_parts = false;
    bool is_last = false;  // of its plan
  };
  struct UnfinishedPart {
    std::shared_ptr<Step> of;
    std::unique_ptr<StepExecutor::Part> part;
  };

  // Does the next thing ahead of what is being executed: begins a plan, ends one, prepares a part.
  // False = nothing can be done now.
  absl::StatusOr<bool> PrepareNext(PlanSource& source);
  absl::StatusOr<bool> BeginPlan(PlanSource& source);
  // Decides whether the newest step has one behind it. REQUIRES: its parts are prepared.
  void EndOrGoOn(PlanSource& source);
  // Whether a slot of this group of the newest plan is in a part that is not finished.
  bool IsUnfinished(const v1::StepPlan& plan, int group) const;
  std::shared_ptr<Step> NewStep(std::shared_ptr<const v1::StepPlan> plan, uint32_t step);
  // Executes the oldest part.
  absl::Status ExecuteOldest();
  // Delivers the results of steps that are complete.
  void DeliverComplete(PlanSource& source);

  StepExecutor& executor_;
  const int depth_;
  std::deque<UnfinishedPart> parts_;
  std::deque<std::shared_ptr<Step>> steps_;  // not delivered, oldest first
  std::shared_ptr<Step> newest_;             // whose parts are being prepared; null = none
  int num_groups_ = 1;                       // of the newest one's plan
  double step_start_ = 0;                    // of what the next result reports
  double idle_seconds_ = 0;
  // Kept for their memory.
  std::vector<std::unique_ptr<StepExecutor::Part>> free_parts_;
  std::vector<std::shared_ptr<Step>> free_steps_;
  std::vector<const StepExecutor::Part*> unfinished_;
};

}  // namespace switchyard::worker
