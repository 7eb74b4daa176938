// Turns plans into steps on the lead rank: keeps the sequences, tells all ranks what to compute,
// and samples.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "switchyard/worker/v1/step.pb.h"

#include "kernels/backend.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "worker/forward/forward.h"
#include "worker/ledger.h"
#include "worker/plan_validator.h"
#include "worker/rank_executor.h"
#include "worker/rank_ledgers.h"
#include "worker/sampler.h"
#include "worker/slot.h"
#include "worker/step_channel.h"
#include "worker/step_header.h"
#include "worker/worker.h"

namespace switchyard::worker {

// Everything of the lead rank but its thread: what RankExecutor has, and slots and sampling. One
// rank leads itself.
//
// A step is run in one part, or in several where the ranks of a layer split work on different slots
// at the same time. Parts are executed in the order in which they were prepared; a part can be
// prepared, and so begun by the ranks in front, when its rows are known.
//
// Call order: Create() -> for each plan: Begin(), then for step 0, 1, ...: Prepare() and Execute()
//             for each of its parts, then Report(). Or RunStep(), which is that with one part.
// Threads:    one at a time.
class StepExecutor {
 public:
  // What a checkpoint holds beside the recurrent state.
  struct SavedSequence {
    int64_t position = -1;        // tokens covered; -1 = nothing was saved
    std::vector<int32_t> recent;  // the last ones, oldest first
  };
  // A slot's rows in a part.
  struct Work {
    int slot = 0;
    const v1::PrefillChunk* chunk = nullptr;  // null: one row of decode
    int64_t num_rows = 0;
    int64_t first_output = 0;  // among the part's outputs
    int64_t num_outputs = 0;
    bool sample = false;
    v1::SlotResult* result = nullptr;
  };
  // What one header covers. Kept for its memory.
  struct Part {
    StepHeader header;
    std::vector<Work> work;
    std::vector<SavedSequence> saved;  // for each of header.saves
    bool has_slot(int slot) const;
    // Whether a token will be sampled for the slot: what comes after it is not known yet.
    bool samples(int slot) const;
  };

  // As Worker::Create().
  static absl::StatusOr<std::unique_ptr<StepExecutor>> Create(
      const model::GgufFile& file, const model::ModelSpec& spec,
      std::unique_ptr<kernels::Backend> backend, const WorkerOptions& options,
      const LoadProgress& progress);

  // Forgets all sequences and checkpoints and takes other sizes, type of cache, epoch and masked
  // tokens; the weights stay. Memory is taken anew only where a size or the type has changed.
  // REQUIRES: CheckWorkerOptions(options) is OK.
  // Errors:   as Create(); the object is of no use then.
  absl::Status Reset(const WorkerOptions& options);

  // What a plan may name, for the PlanValidator in front of this object.
  const PlanLimits& limits() const { return limits_; }
  const WorkerMemory& memory() const { return rank_->memory(); }
  kernels::Backend& backend() { return rank_->backend(); }
  Forward& forward() { return rank_->forward(); }
  RankExecutor& rank() { return *rank_; }

  // The other ranks, from Create() or Reset() on; with more than one rank to be called before the
  // first plan. Both must stay valid while steps run.
  void Join(comm::Communicator& ranks, comm::Communicator& control);

  // Applies starts, operations and page tables: first the Free operations (they end earlier uses of
  // the slots), then the starts, then the Restore operations in order, then the page tables. The
  // other ranks learn of it with the next part.
  // REQUIRES: the plan was accepted by a PlanValidator, after all earlier ones.
  // Errors:   kFailedPrecondition if a checkpoint does not hold what the plan says.
  absl::Status Begin(const v1::StepPlan& plan);

  // Whether `plan` may begin while these parts are still to be executed: it neither ends nor starts
  // anything that they compute, and all of its rows are known.
  bool CanBegin(const v1::StepPlan& plan, absl::Span<const Part* const> unfinished) const;

  // Determines the rows of a part of step `step` and tells the other ranks: the chunks of the plan
  // (in part 0 of step 0), and those of its decoding slots whose index is `part` modulo
  // `num_parts`. Rows are added to `result`, which must stay where it is, as must the plan. Returns
  // false if there is nothing to do. Errors: kFailedPrecondition (a chunk does not continue its
  // sequence), those of the communicator.
  absl::StatusOr<bool> Prepare(const v1::StepPlan& plan, uint32_t step, int part, int num_parts,
                               Part& to, v1::StepResult& result);

  // Computes the rows and samples. In steady decode nothing is allocated.
  // Errors: those of the device and the communicator. The state is undefined then.
  absl::Status Execute(Part& part);

  // Adds the ledger of all that was done since the last call, `seconds` in all, to the result.
  void Report(double seconds, v1::StepResult& result);

  // Runs step `step` of the plan: chunks and decoding slots in step 0, decoding slots after it.
  // `result` is overwritten, all but last_of_plan; it keeps its memory.
  // Errors: of Prepare() and Execute().
  absl::Status RunStep(const v1::StepPlan& plan, uint32_t step, v1::StepResult& result);

  // True if the plan has a step after `step` in which a slot goes on.
  bool HasStepAfter(const v1::StepPlan& plan, uint32_t step) const;

 private:
  StepExecutor(const model::ModelSpec& spec, const WorkerOptions& options)
      : spec_(spec), options_(options) {}

  // What is this rank's beside rank_, for options_.
  absl::Status AllocateState();

  // `is_restored`: a checkpoint of the same plan will overwrite the slot's state.
  void StartSlot(const v1::SlotStart& start, bool is_restored);
  absl::Status AddChunk(const v1::PrefillChunk& chunk, Part& part, v1::StepResult& result);
  void AddDecode(const v1::DecodeSlot& decode, Part& part, v1::StepResult& result);
  // Appends rows of the slot to the header; tokens are there already, from `row_begin` on. The
  // slot counts them as computed.
  void AddRows(Work work, int64_t row_begin, int64_t first_position, int64_t num_provisional,
               Part& part);
  // How many of an output's largest logits are looked at, 0 = all.
  int32_t NumCandidates(const Slot& slot, const Work& work, bool is_sampled) const;
  absl::Status FinishOutputs(Part& part);
  void FinishOutput(Work& work, int64_t output, absl::Span<const float> logits);
  // Samples for the slot; one for which that fails stops, and nobody else notices.
  void SampleFor(Work& work, absl::Span<const float> logits);
  void ReportLogprobs(const Slot& slot, int32_t token_id, absl::Span<const float> logits,
                      v1::SlotResult& result);

  const model::ModelSpec& spec_;
  WorkerOptions options_;
  PlanLimits limits_;
  std::unique_ptr<RankExecutor> rank_;
  // Null: no other ranks.
  std::unique_ptr<StepChannel> channel_;
  std::unique_ptr<RankLedgers> ledgers_;
  uint64_t num_sent_steps_ = 0;  // in this epoch
  std::unique_ptr<Sampler> sampler_;
  std::vector<Slot> slots_;
  std::vector<SavedSequence> saved_;  // by checkpoint

  double begin_seconds_ = 0;  // of Begin(), counted with the first step

  StepHeader changes_;                    // of Begin(), for the next part
  Ledger ledger_;                         // since the last Report()
  Part part_;                             // of RunStep()
  std::unique_ptr<float[]> host_logits_;  // [kLogitRows, vocab_size]
  std::vector<Candidate> candidates_;
};

}  // namespace switchyard::worker
