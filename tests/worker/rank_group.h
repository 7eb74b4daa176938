// The ranks of a group as threads of a test, and a way to feed their lead.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "switchyard/worker/v1/step.pb.h"

#include "placement/placement.h"
#include "worker/engine_harness.h"
#include "worker/worker.h"

namespace switchyard::worker {

// Every failure aborts the test program, but those of steps: they are results.
class RankGroup {
 public:
  RankGroup(const std::string& model_path, const Device& device, const WorkerOptions& options,
            const placement::PlacementWish& wish);
  ~RankGroup();

  const model::ModelSpec& spec() const { return *spec_; }
  int lead_rank() const { return lead_rank_; }
  Worker& worker(int rank) { return *workers_[static_cast<size_t>(rank)]; }

  // Connects all ranks for their epoch. Called by the constructor.
  void Join();
  // Begins the next epoch on all ranks and joins.
  void NextEpoch();

  // Starts slot 0 anew (all pages, at most `num_new` tokens), feeds the tokens in chunks and goes
  // on greedily. Returns the logits of all prompt positions and the tokens sampled.
  struct Continuation {
    std::vector<float> logits;  // [tokens, vocab_size]
    std::vector<int32_t> ids;
  };
  Continuation Continue(absl::Span<const int32_t> tokens, int num_new, int64_t chunk = 512);

  // Submits plans to the lead, all at once, and waits for the last result of the last one, or for
  // the loss of the group. Returns all results.
  std::vector<v1::StepResult> Run(const std::vector<v1::StepPlan>& plans);
  // Waits until so many ranks have lost the group in this epoch; which ones.
  std::vector<int> WaitForLosses(size_t count);
  v1::StepPlan NewPlan();

 private:
  model::GgufFile file_;
  std::unique_ptr<model::ModelSpec> spec_;
  WorkerOptions options_;
  int lead_rank_ = 0;
  uint64_t last_plan_ = 0;
  uint64_t incarnation_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<v1::StepResult> results_;
  std::vector<int> lost_ranks_;

  std::vector<std::unique_ptr<Worker>> workers_;  // their threads use all of the above
};

}  // namespace switchyard::worker
