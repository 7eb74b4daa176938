// The plans that are with a worker, and what its results may say: a worker is another process,
// whose messages are checked like any other input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
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
  // that the plan runs and that have not stopped, with tokens of the vocabulary, no more of them
  // than the slot's use may make, positions within the context, and no more data than was asked
  // for.
  // Errors: kInvalidArgument names the field; nothing has changed then.
  absl::Status Accept(const switchyard::worker::v1::StepResult& result);

  // Forgets all plans and slots; numbers may start anywhere again.
  void Clear();

  bool empty() const { return plans_.empty(); }
  size_t num_plans() const { return plans_.size(); }
  // Rows at most of the step whose result comes next; 0 if there is none.
  int64_t next_rows() const;

 private:
  // A use of a slot: what was said at its start, and what has come since then.
  struct Use {
    uint64_t incarnation = 0;
    bool return_logits = false;
    int64_t num_logprobs = -1;    // -1 = none, not even the token's own
    int64_t num_tokens_left = 0;  // that it may still make
    bool has_stopped = false;
  };
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
    std::shared_ptr<Use> use{};  // shared with other plans; null = its start was never seen
  };
  struct Plan {
    uint64_t number = 0;
    uint32_t run_ahead = 0;
    uint32_t next_step = 0;
    int64_t first_rows = 0;
    int64_t decode_rows = 0;
    std::vector<Part> parts;  // by slot
  };
  Part& PartOf(Plan& plan, uint32_t slot, uint64_t incarnation) const;
  static Part* FindPart(Plan& plan, uint32_t slot);
  absl::Status CheckSlot(const Part* part, bool is_first_step,
                         const switchyard::worker::v1::SlotResult& result) const;
  static absl::Status CheckUse(const Use& use, const switchyard::worker::v1::SlotResult& result);
  absl::Status CheckLogprobs(const Part& part,
                             const switchyard::worker::v1::SlotResult& result) const;

  switchyard::worker::v1::WorkerSizes sizes_;
  int64_t vocab_size_;
  uint64_t last_plan_ = 0;
  std::vector<std::shared_ptr<Use>> uses_;  // by slot, of the newest plan; null = none yet
  std::deque<Plan> plans_;
};

}  // namespace switchyard::coordinator
