// Checks step plans at the door: what comes from outside is refused before anything runs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"

#include "switchyard/worker/v1/step.pb.h"

namespace switchyard::worker {

// What a plan may name.
struct PlanLimits {
  int num_slots = 0;
  int num_pages = 0;
  int num_checkpoints = 0;
  int64_t max_context = 0;
  int max_step_rows = 0;
  int64_t vocab_size = 0;
  int64_t num_choices = 0;  // ids that can be sampled
  uint64_t epoch = 0;
};

// Follows the plans that were accepted so far, so that a plan is checked against the state that it
// will find. Where a sequence stands after decode steps is known only when they have run: such
// positions are checked again by the executor.
//
// Threads: one at a time.
class PlanValidator {
 public:
  explicit PlanValidator(const PlanLimits& limits);

  // Accepts the plan, or leaves everything as it was.
  // Errors: kInvalidArgument names the field.
  absl::Status Accept(const v1::StepPlan& plan);

 private:
  struct SlotView {
    uint64_t incarnation = 0;
    bool active = false;
    bool sampled = false;  // has a token to go on from
    int64_t num_entries = 0;
    // Rows that can no longer be rejected, and all rows; nothing after decode steps.
    std::optional<int64_t> committed = 0;
    std::optional<int64_t> position = 0;
  };

  absl::Status ApplyFrees(const v1::StepPlan& plan);
  absl::Status ApplyStarts(const v1::StepPlan& plan);
  absl::Status ApplyRestores(const v1::StepPlan& plan);
  absl::Status ApplyPageTables(const v1::StepPlan& plan);
  absl::Status ApplyPrefill(const v1::StepPlan& plan);
  absl::Status ApplyChunk(const v1::PrefillChunk& chunk, SlotView& slot);
  absl::Status ApplyDecode(const v1::StepPlan& plan);
  absl::Status CheckRows(const v1::StepPlan& plan) const;

  PlanLimits limits_;
  uint64_t last_plan_ = 0;
  std::vector<SlotView> slots_;
  std::vector<int64_t> checkpoints_;  // position of each, -1 = never saved
  // The next state, while a plan is looked at.
  std::vector<SlotView> next_slots_;
  std::vector<int64_t> next_checkpoints_;
  std::vector<uint8_t> in_list_;  // slots seen in the list that is being checked
};

}  // namespace switchyard::worker
