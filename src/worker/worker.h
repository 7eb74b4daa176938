// One rank: owns the weights, caches and step thread, and does what StepPlans say, or what the lead
// rank makes of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "switchyard/worker/v1/step.pb.h"

#include "comm/communicator.h"
#include "kernels/backend.h"
#include "model/gguf_file.h"
#include "model/model_spec.h"
#include "placement/placement.h"
#include "worker/experts/residency_policy.h"
#include "worker/model_weights.h"
#include "worker/weight_loader.h"

namespace switchyard::worker {

// Sizes that the coordinator decides; everything is allocated from them once.
struct WorkerOptions {
  int num_slots = 4;           // sequences that can have state at the same time
  int num_pages = 256;         // cache pages of kernels::kPageTokens tokens, shared by all slots
  int num_checkpoints = 16;    // saved states for prefix reuse
  int64_t max_context = 4096;  // tokens of one sequence
  int max_step_rows = 512;     // rows of one step: prefill chunks and decoding slots together
  kernels::KvType kv_type = kernels::KvType::kF16;
  uint64_t epoch = 1;  // plans of another epoch are refused
  // Rows of the output matrix that are no token: masked whatever the request says.
  std::vector<int32_t> never_sampled;
  // Who computes what; unset = one rank computes everything. The weights are loaded for it:
  // Reset() cannot change it, nor the rank.
  placement::v1::Placement placement;
  int rank = 0;
  // Compares what all ranks should have alike after each sum: a rank that drifts apart would choose
  // other experts. Costs an exchange each; always on in debug builds.
  bool check_ranks = false;
  // Which experts are in memory; as above.
  ResidencyOptions residency;
};

// A rank's ends of what connects the group in one epoch.
struct GroupLinks {
  std::unique_ptr<comm::Communicator> tensors;
  std::unique_ptr<comm::Communicator> control;  // step headers; waits for them without a deadline
};

// Bytes of a loaded worker, for the start-up log and for tests.
struct WorkerMemory {
  int64_t file_bytes = 0;        // tensors in the file
  int64_t weight_bytes = 0;      // resident weights, in the backend's layout
  int64_t mapped_bytes = 0;      // stays in the file, gathered from the map (n-gram table)
  int64_t kv_bytes = 0;          // all pages
  int64_t state_bytes = 0;       // recurrent state of all slots
  int64_t checkpoint_bytes = 0;  // all checkpoints
  int64_t activation_bytes = 0;
  TokenWeights token;  // what one decoded token reads of the weights
};

// Runs steps on a thread of its own. With several ranks the lead rank takes plans; the others take
// step headers from it, once they have joined.
//
// Call order: Create() -> Start() -> [Join() ->] Submit() ... Reset() -> [Join() ->] ... -> Stop()
//             (or destruction).
// Threads:    Submit(), Join(), Reset() and Stop() from any thread; callbacks run on the step
//             thread and must not block.
class Worker {
 public:
  // The result is valid during the call only.
  using ResultCallback = std::function<void(const switchyard::worker::v1::StepResult&)>;
  // A step could not be finished because another rank, or a link, has failed. This worker has not:
  // it has dropped its plans, takes no more, and waits for Reset().
  using GroupLostCallback = std::function<void(const absl::Status&)>;

  // Loads the weights of `spec` into `backend` and allocates all state. `file` and `spec` must
  // outlive the worker (the n-gram table is read from the map).
  // Errors: what loading returns; kResourceExhausted; kInvalidArgument for sizes that do not fit.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const model::GgufFile& file,
                                                        const model::ModelSpec& spec,
                                                        std::unique_ptr<kernels::Backend> backend,
                                                        const WorkerOptions& options,
                                                        const LoadProgress& progress);
  ~Worker();

  const WorkerMemory& memory() const;
  const kernels::Backend& backend() const;

  // Where the rank's experts are. Threads: any.
  ResidencySnapshot residency() const;

  // Starts the step thread. Ranks that do not lead have no results but the error of a step.
  void Start(ResultCallback callback, GroupLostCallback on_group_lost = {});

  // Connects the rank with the others, for the epoch of the options.
  // REQUIRES: more than one rank; the first time since Create() or Reset().
  // Errors:   kUnavailable as Submit(), kFailedPrecondition (has joined).
  absl::Status Join(GroupLinks links);

  // Queues a plan. Its first step always runs, in order; the steps after it only while no newer
  // plan waits.
  // Errors: kInvalidArgument names the field (unknown slot, page or checkpoint, position out of
  // order, token id outside the vocabulary, more rows than max_step_rows), kUnavailable after a
  // step has failed or after Stop(), kFailedPrecondition on a rank that does not lead or has not
  // joined; nothing is queued then. Once the group is lost plans are dropped with OK.
  absl::Status Submit(switchyard::worker::v1::StepPlan plan);

  // Drops all work and state but the weights: the running plan ends at its step border, plans that
  // wait are forgotten, as are all slots, pages and checkpoints. Plans of options.epoch are taken
  // from then on, numbered from any number; sizes may differ from those before. No result of an
  // earlier plan comes after it has returned. Links to other ranks are aborted.
  //
  // Waits for the running step: not to be called from the callback.
  // Errors: kInvalidArgument for sizes that do not fit, nothing has changed then; kUnavailable as
  //         Submit(); what Create() returns where memory is taken, the worker has failed then.
  absl::Status Reset(const WorkerOptions& options);

  // Ends the step thread after the running step. Idempotent.
  void Stop();

 private:
  struct Impl;
  explicit Worker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::worker
