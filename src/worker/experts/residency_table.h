// Where each expert of a rank is: states, the table that a step reads, and what is counted.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace switchyard::worker {

// State of one (layer, expert). The fast tier is the device's memory on a GPU worker and the host's
// on a CPU worker.
enum class ExpertState : uint8_t {
  kAbsent,    // not of this rank's shard
  kFile,      // in the model file only; computed from there
  kHost,      // in host memory, in the backend's layout: the fast tier of a CPU worker
  kLoading,   // on its way to the fast tier; computed from where it was
  kResident,  // in device memory: the fast tier of a GPU worker
  kPinned,    // in device memory and never evicted
};

// The table of one version. Immutable while a step that reads it runs.
class ResidencyTable {
 public:
  // Slots of the fast tier by expert, -1 = in the slow tier; [num_experts]. Empty if the layer's
  // tensors have no tiers: all its experts are in the fast one.
  absl::Span<const int32_t> slots(int layer) const {
    return has_tiers_[static_cast<size_t>(layer)] == 0
               ? absl::Span<const int32_t>()
               : absl::MakeConstSpan(slots_).subspan(static_cast<size_t>(layer) * num_experts_,
                                                     num_experts_);
  }
  uint64_t version() const { return version_; }
  size_t num_experts() const { return num_experts_; }

 private:
  friend class ExpertStore;
  uint64_t version_ = 0;
  size_t num_experts_ = 0;
  std::vector<uint8_t> has_tiers_;  // [num_layers]
  std::vector<int32_t> slots_;      // [num_layers, num_experts]
};

// Sums since the load, of one layer. A use is one row that an expert computed; uses = hits +
// misses. Experts in the fast tier = those that the load put there - evictions + promotions.
struct ExpertCounters {
  uint64_t hits = 0;    // uses of experts in the fast tier
  uint64_t misses = 0;  // uses of experts in the slow tier
  uint64_t promotions = 0;
  uint64_t evictions = 0;
  uint64_t bytes_moved = 0;  // into the fast tier, by promotions

  ExpertCounters& operator+=(const ExpertCounters& other) {
    hits += other.hits;
    misses += other.misses;
    promotions += other.promotions;
    evictions += other.evictions;
    bytes_moved += other.bytes_moved;
    return *this;
  }
};

// What is where now, for reports. A copy: nothing changes it.
struct ResidencySnapshot {
  uint64_t version = 0;  // of the table
  int num_layers = 0;
  int num_experts = 0;
  std::vector<ExpertState> states;       // [num_layers, num_experts]
  std::vector<uint64_t> uses;            // [num_layers, num_experts], since the load
  std::vector<ExpertCounters> counters;  // [num_layers]
  ExpertState fast_state = ExpertState::kHost;
  int64_t fast_bytes = 0;    // of the slots that are taken
  int64_t budget_bytes = 0;  // of all slots

  int64_t Count(ExpertState state) const {
    int64_t count = 0;
    for (const ExpertState s : states) count += s == state ? 1 : 0;
    return count;
  }
  ExpertCounters Total() const {
    ExpertCounters total;
    for (const ExpertCounters& layer : counters) total += layer;
    return total;
  }
};

}  // namespace switchyard::worker
