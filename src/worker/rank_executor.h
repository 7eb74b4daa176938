// One rank's weights and states, and the steps that it is told to run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "comm/communicator.h"
#include "kernels/backend.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "placement/rank_share.h"
#include "worker/cache/checkpoint.h"
#include "worker/cache/kv_cache.h"
#include "worker/cache/recurrent_state.h"
#include "worker/experts/expert_store.h"
#include "worker/forward/batch.h"
#include "worker/forward/forward.h"
#include "worker/ledger.h"
#include "worker/model_weights.h"
#include "worker/step_header.h"
#include "worker/worker.h"

namespace switchyard::worker {

// Errors: kInvalidArgument names the option that is too small or does not fit the model.
absl::Status CheckWorkerOptions(const WorkerOptions& options, const model::ModelSpec& spec);

// Obeys: knows slots as numbers with state, no sequences and no sampling. The lead rank has one
// beside what decides (StepExecutor), every other rank has nothing else.
//
// Call order: Create() -> { Run() -> Logits() for all outputs, kLogitRows at a time -> Finish() }
//             for each step.
// Threads:    one at a time.
class RankExecutor {
 public:
  // As Worker::Create().
  static absl::StatusOr<std::unique_ptr<RankExecutor>> Create(
      const model::GgufFile& file, const model::ModelSpec& spec,
      std::unique_ptr<kernels::Backend> backend, const WorkerOptions& options,
      const LoadProgress& progress);

  // Writes the profile of the experts' uses, if there is one to write.
  ~RankExecutor();

  // Forgets all states and takes other sizes; the weights stay. Memory is taken anew only where a
  // size or the type of cache has changed.
  // Errors: as Create(); the object is of no use then.
  absl::Status Reset(const WorkerOptions& options);

  // The other ranks from now on; null = none. Must stay valid while steps run.
  void SetRanks(comm::Communicator* ranks) { ranks_ = ranks; }

  // Applies the header's changes and computes its rows.
  // REQUIRES: CheckStepHeader(header, header_limits()) is OK.
  // Errors:   those of the device and the communicator, kFailedPrecondition (a checkpoint does not
  //           hold what the header says). The state is undefined then.
  absl::Status Run(const StepHeader& header, Ledger& ledger);

  // As Forward::Logits(), of the last Run().
  absl::StatusOr<MatrixView<const float>> Logits(const StepHeader& header, int64_t first,
                                                 int64_t count, Ledger& ledger) {
    return forward_->Logits(first, count, header.NumCandidates(first, count), ranks_, ledger);
  }

  // Saves what the header says, and looks after the device.
  absl::Status Finish(const StepHeader& header, Ledger& ledger);

  // All of a step on a rank that does not lead, but for Finish().
  absl::Status RunRows(const StepHeader& header, Ledger& ledger);

  // Where the experts are. Threads: any.
  ResidencySnapshot residency() const { return experts_->Snapshot(); }
  ExpertStore& experts() { return *experts_; }

  const placement::RankShare& share() const { return share_; }
  StepHeaderLimits header_limits() const;
  const WorkerMemory& memory() const { return memory_; }
  kernels::Backend& backend() { return *backend_; }
  Forward& forward() { return *forward_; }
  // Tokens that hashing the next token needs, before it.
  size_t num_context_tokens() const { return num_context_tokens_; }

 private:
  RankExecutor(const model::GgufFile& file, const model::ModelSpec& spec,
               const WorkerOptions& options)
      : file_(file), spec_(spec), options_(options) {}

  absl::Status LoadAll(const LoadProgress& progress);
  // Reads the profile, if there is one.
  absl::Status WarmFromProfile();
  void SaveProfile();
  std::string ProfilePath() const;
  // Everything but the weights, for options_.
  absl::Status AllocateState();
  absl::Status ApplyChanges(const StepHeader& header, Ledger& ledger);
  void FillBatch(const StepHeader& header);
  // Whether what was computed is right, as far as device and model file tell.
  absl::Status CheckComputed() const;

  const model::GgufFile& file_;
  const model::ModelSpec& spec_;
  WorkerOptions options_;
  placement::RankShare share_;
  WorkerMemory memory_;
  // Order matters: weights and buffers go before the backend that they came from.
  std::unique_ptr<kernels::Backend> backend_;
  ModelWeights weights_;
  bool fills_slots_ = true;               // at load; later copies run beside steps
  std::unique_ptr<ExpertStore> experts_;  // copies into weights_ on a thread of its own
  std::string model_digest_;              // with a profile
  std::vector<uint32_t> uses_;            // of the running step, [num_layers, num_experts]
  std::unique_ptr<KvCache> kv_cache_;
  std::unique_ptr<RecurrentState> state_;
  std::unique_ptr<CheckpointStore> checkpoints_;
  std::unique_ptr<Forward> forward_;
  std::vector<std::vector<int32_t>> pages_;  // page table of each slot
  size_t num_context_tokens_ = 0;
  comm::Communicator* ranks_ = nullptr;
  Batch batch_;  // of the running step; kept for its memory
};

}  // namespace switchyard::worker
