// Residency of one rank's experts: which are in the fast tier, and moving them there.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "worker/experts/residency_policy.h"
#include "worker/experts/residency_table.h"

namespace switchyard::worker {

// The experts of one layer that a rank has.
struct ExpertLayer {
  std::vector<int> present;  // ids, ascending
  int64_t expert_bytes = 0;  // of one expert in the fast tier
  int64_t file_bytes = 0;    // and in the file
  // Slots of the fast tier, at most present.size(); as many = all are there, for good, and the
  // tensors have no tiers.
  int num_slots = 0;
  bool has_tiers() const { return num_slots < static_cast<int>(present.size()); }
};

// Divides the budget of the fast tier over the layers: sets their num_slots.
// Errors: kInvalidArgument for a budget that is not 0 and below one expert, and for counts of
//         another model's shape.
absl::Status DivideBudget(const ResidencyOptions& options, int num_experts,
                          std::vector<ExpertLayer>& layers);

struct ExpertStoreOptions {
  int num_experts = 0;
  int uses_per_token = 1;  // experts that the router chooses
  std::vector<ExpertLayer> layers;
  ResidencyPolicyOptions policy;
  ExpertState fast_state = ExpertState::kHost;  // kResident on a GPU worker
  // Counts of earlier runs, [num_layers, num_experts]; may be empty.
  std::vector<uint64_t> earlier_uses;
  int max_running_steps = 1;  // that have begun and not ended
};

// Copies an expert from the slow tier into a slot of the fast one; returns when it is there.
// Threads: one call at a time: of Fill()'s caller, then of the store's own thread.
using ExpertCopy = std::function<absl::Status(int layer, int expert, int slot)>;

// Tracks residency of one rank's experts and moves them between tiers.
//
// Call order: Fill() -> for each step: BeginStep(), layers run, EndStep(use counts). Steps end in
//             the order in which they began.
// Threads:    Fill(), BeginStep() and EndStep() from the step thread (before it runs: from who
//             loads); Snapshot(), status() and WaitForCopies() from any thread.
class ExpertStore {
 public:
  ExpertStore(ExpertStoreOptions options, ExpertCopy copy);
  // Ends the copy that runs; those that wait are dropped.
  ~ExpertStore();
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  // Fills the slots with the experts that were used most, the first ones where nothing is known.
  // `on_copied` is called after each; an error that it returns ends the load.
  // Errors: those of the copies and of `on_copied`.
  absl::Status Fill(const std::function<absl::Status(int layer)>& on_copied = {});

  // Returns the residency table that this step reads: for each (layer, expert) its slot or tier.
  // The table and every slot in it stay valid until the EndStep() that matches. Starts no copy,
  // allocates nothing and waits for no copy.
  // REQUIRES: fewer than max_running_steps steps run.
  const ResidencyTable& BeginStep();

  // Takes the use counts of the oldest step that runs, [num_layers, num_experts], lets the policy
  // choose, and hands copies over within the byte budget. An expert that is evicted is in no table
  // from the next BeginStep() on; what has landed becomes visible with it. Allocates nothing.
  void EndStep(absl::Span<const uint32_t> counts);

  ResidencySnapshot Snapshot() const;

  // The first error of a copy: the file cannot be read any more. No expert moves from then on.
  absl::Status status() const;

  // Waits until nothing is on its way and every copy that may start has landed (visible with the
  // next BeginStep()).
  void WaitForCopies();

  bool has_tiers() const { return has_tiers_; }

 private:
  struct Copy {
    int layer, expert, slot;
    uint64_t version;  // of the first table without the expert that had the slot
  };

  size_t Index(int layer, int expert) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(options_.num_experts) +
           static_cast<size_t>(expert);
  }
  // REQUIRES, here and below: mutex_ is held.
  void TakeLanded();
  void Publish();
  void CountUses(const ResidencyTable& table, absl::Span<const uint32_t> counts);
  void StartSwaps();
  bool MayStart(const Copy& copy) const;
  void RunCopies();  // body of the thread

  const ExpertStoreOptions options_;
  const ExpertCopy copy_;
  bool has_tiers_ = false;
  std::vector<int64_t> expert_bytes_;  // [num_layers]

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  ResidencyPolicy policy_;
  std::vector<ExpertState> states_;  // [num_layers, num_experts]
  std::vector<int32_t> slots_;       // of the next table
  std::vector<uint64_t> uses_;       // [num_layers, num_experts]
  std::vector<ExpertCounters> counters_;
  std::vector<ResidencyTable> tables_;  // one for each step that may run
  size_t current_ = 0;                  // the newest table
  bool is_dirty_ = false;               // slots_ differ from it
  // Short lists with room for all that can be in them.
  std::vector<size_t> running_;  // tables of the steps that run, oldest first
  std::vector<Copy> waiting_;    // oldest first
  std::vector<Copy> landed_;
  bool is_copying_ = false;
  int64_t moving_bytes_ = 0;  // of copies that wait, run, or have landed and are not visible
  std::vector<ExpertSwap> swaps_;
  absl::Status status_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace switchyard::worker
