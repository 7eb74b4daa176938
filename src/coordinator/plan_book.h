// The plans that are with a worker, and what its results may say: a worker is another process,
// whose messages are checked like any other input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"

#include "switchyard/worker/v1/session.pb.h"
#include "switchyard/worker/v1/step.pb.h"

namespace switchyard::coordinator {

// Threads: one at a time.
class PlanBook {
 public:
  // REQUIRES: sizes and vocab_size fit int64_t and are above zero, but for num_checkpoints.
  PlanBook(const switchyard::worker::v1::WorkerSizes& sizes, int64_t vocab_size);

  // Enters a plan behind those that are with the worker.
  // Errors: kInvalidArgument if its number does not grow or it names a slot that there is not.
  absl::Status Add(const switchyard::worker::v1::StepPlan& plan);

  // Takes the next result. It must be of the oldest plan and of its next step, and name only slots
  // that the plan runs, with tokens of the vocabulary, positions within the context, and no more
  // data than was asked for.
  // Errors: kInvalidArgument names the field; nothing has changed then.
  absl::Status Accept(const switchyard::worker::v1::StepResult& result);

  // Forgets all plans and slots; numbers may start anywhere again.
  void Clear();

  bool empty() const { return plans_.empty(); }
  size_t num_plans() const { return plans_.size(); }
  // Rows at most of the step whose result comes next; 0 if there is none.
  int64_t next_rows() const;

 private:
  // A slot's part in a plan.
  struct Part {
    uint32_t slot = 0;
    uint64_t incarnation = 0;
    bool has_chunk = false;
    int64_t chunk_end = 0;
    int64_t num_chunk_tokens = 0;
    bool sample = false;
    bool return_all_logits = false;
    bool decodes = false;
    bool return_logits = false;
    int64_t num_logprobs = -1;  // -1 = none, not even the token's own
  };
  struct Plan {
    uint64_t number = 0;
    uint32_t run_ahead = 0;
    uint32_t next_step = 0;
    int64_t first_rows = 0;
    int64_t decode_rows = 0;
    std::vector<Part> parts;  // by slot
  };
  // What was said of the slot's use at its start.
  struct Use {
    uint64_t incarnation = 0;
    bool return_logits = false;
    int64_t num_logprobs = -1;
  };

  Part& PartOf(Plan& plan, uint32_t slot, uint64_t incarnation) const;
  absl::Status CheckSlot(const Plan& plan, bool is_first_step,
                         const switchyard::worker::v1::SlotResult& result) const;
  absl::Status CheckLogprobs(const Part& part,
                             const switchyard::worker::v1::SlotResult& result) const;

  switchyard::worker::v1::WorkerSizes sizes_;
  int64_t vocab_size_;
  uint64_t last_plan_ = 0;
  std::vector<Use> uses_;  // by slot, of the newest plan
  std::deque<Plan> plans_;
};

}  // namespace switchyard::coordinator
