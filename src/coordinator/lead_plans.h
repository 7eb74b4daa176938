// The plans of the present epoch: those with the lead rank, those that wait until it may get them,
// and how long its steps take.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "switchyard/worker/v1/session.pb.h"
#include "switchyard/worker/v1/step.pb.h"

#include "coordinator/plan_book.h"

namespace switchyard::coordinator {

// A step may take `factor` times what the slowest so far took for as many rows, but always
// min_seconds; before any has been seen, first_seconds, since its pages may have to come from a
// disk.
struct StepLimits {
  double min_seconds = 3;
  double factor = 20;
  double first_seconds = 600;
};

// Threads: one at a time. Times are those of one clock.
class LeadPlans {
 public:
  LeadPlans(const switchyard::worker::v1::WorkerSizes& sizes, int64_t vocab_size,
            const StepLimits& limits)
      : limits_(limits), book_(sizes, vocab_size) {}

  // Forgets all plans; what steps took stays known.
  void Clear();
  // From now on there can be plans.
  void Begin(double now) { step_since_ = now; }

  // Puts a plan behind those that wait.
  void Hold(switchyard::worker::v1::StepPlan plan) { held_.push_back(std::move(plan)); }
  // The next plan that waits, which is with the lead from now on; nothing = none waits.
  // Errors: those of PlanBook::Add().
  absl::StatusOr<std::optional<switchyard::worker::v1::StepPlan>> Next(double now);

  // Takes a result that came now.
  // Errors: those of PlanBook::Accept(); nothing has changed then.
  absl::Status Accept(const switchyard::worker::v1::StepResult& result, double now);

  // Whether the lead has a plan.
  bool is_running() const { return !book_.empty(); }
  // Whether plans are under way, or were less than `seconds` ago.
  bool RanWithin(double seconds, double now) const {
    return is_running() || !held_.empty() || now - step_since_ < seconds;
  }
  // Whether the step that runs takes longer than it may.
  bool IsOverdue(double now) const {
    return is_running() && now - step_since_ > SecondsForStep(book_.next_rows());
  }
  // What a step of so many rows may take.
  double SecondsForStep(int64_t num_rows) const;
  // Of the slowest so far; 0 = none yet.
  double slowest_step_seconds() const { return slowest_step_seconds_; }

  // Moves the clock by a time for which this process did not run.
  void Skip(double pause, double now);

 private:
  StepLimits limits_;
  PlanBook book_;                                      // with the lead
  std::deque<switchyard::worker::v1::StepPlan> held_;  // for a lead that must not get them
  double step_since_ = 0;  // when the running step may have begun, or the last one ended
  double slowest_step_seconds_ = 0;
  double slowest_row_seconds_ = 0;
};

}  // namespace switchyard::coordinator
