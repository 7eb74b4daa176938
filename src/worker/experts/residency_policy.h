// Which experts should change tiers: a function of use counts, without clock, thread or file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "worker/experts/residency_table.h"

namespace switchyard::worker {

struct ResidencyPolicyOptions {
  // Tokens after which a use counts half. Long enough that the counts of experts of average
  // popularity stand out from their noise, short enough to follow a change of subject.
  double half_life_tokens = 4096;
  // A swap must bring this many times the uses that it gives away.
  double min_gain = 1.5;
  // And more than chance would: the difference of the two counts, in standard deviations. With four
  // of them a stationary trace swaps two like experts once in 30,000 comparisons of fresh counts,
  // and twice, there and back, never.
  double min_deviations = 4;
  // Weights that may be on their way at a time. 16 MiB are a few milliseconds of one core.
  int64_t max_copy_bytes = int64_t{16} << 20;
};

// What a rank may keep in the fast tier, and what is known of its experts before it starts.
struct ResidencyOptions {
  int64_t fast_bytes = -1;  // of experts; negative = room for all
  ResidencyPolicyOptions policy;
  // Counts of earlier runs, [num_layers, num_experts]; may be empty.
  std::vector<uint64_t> earlier_uses;
  // Where counts of earlier runs are read from, unless they are given, and written to at the end
  // (expert_profile.h). Other ranks than 0 add ".rank1" and so on. Empty = nowhere.
  std::string profile_path;
};

// One proposal: `promote` takes the slot of `evict`.
struct ExpertSwap {
  int layer = 0;
  int promote = 0;
  int evict = 0;
};

// Keeps decayed use counts and proposes swaps.
//
// Units:   scores are uses, each halved for every half_life_tokens that its layer has seen since.
// Threads: one at a time. Propose() and Observe() allocate nothing once `out` has grown.
class ResidencyPolicy {
 public:
  // `uses_per_token`: experts that the router chooses.
  ResidencyPolicy(const ResidencyPolicyOptions& options, int num_layers, int num_experts,
                  int uses_per_token);

  // Starts from counts of earlier runs, [num_layers, num_experts]. They weigh as much as one half
  // life of tokens at most, so that what this run sees soon counts more.
  void Warm(absl::Span<const uint64_t> uses);

  // Takes the uses of a step, [num_layers, num_experts].
  void Observe(absl::Span<const uint32_t> uses);

  // Appends swaps within the layers, at most one a layer, those first that save most uses per byte,
  // while their bytes fit `budget_bytes`. A layer in which an expert is on its way gets none.
  //
  // Shapes: states [num_layers, num_experts], expert_bytes [num_layers].
  void Propose(absl::Span<const ExpertState> states, absl::Span<const int64_t> expert_bytes,
               int64_t budget_bytes, std::vector<ExpertSwap>& out);

  // Experts of a layer among `among` with the highest scores, at most `count` of them, the lower id
  // first on a tie.
  std::vector<int> Best(int layer, absl::Span<const int> among, int count) const;

  // [num_experts]
  absl::Span<const float> scores(int layer) const {
    return absl::MakeConstSpan(scores_).subspan(
        static_cast<size_t>(layer) * static_cast<size_t>(num_experts_),
        static_cast<size_t>(num_experts_));
  }

 private:
  struct Candidate {
    ExpertSwap swap;
    double saved_per_byte = 0;
  };
  bool IsWorth(double promoted, double evicted) const;

  ResidencyPolicyOptions options_;
  int num_layers_;
  int num_experts_;
  int uses_per_token_;
  std::vector<float> scores_;          // [num_layers, num_experts]
  std::vector<Candidate> candidates_;  // of one Propose(), kept for its memory
};

// How many slots each layer gets from `budget_bytes` (negative = enough for all): the experts with
// the most uses per byte over all layers where `uses` [num_layers, num_experts] is given, else the
// same number everywhere, the first layers one more where the rest allows.
//
// Shapes: num_present and expert_bytes [num_layers]; so is the result.
std::vector<int> DivideSlots(int64_t budget_bytes, absl::Span<const int> num_present,
                             absl::Span<const int64_t> expert_bytes,
                             absl::Span<const uint64_t> uses, int num_experts);

}  // namespace switchyard::worker
