#include "worker/experts/residency_policy.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace switchyard::worker {
namespace {

bool IsInFastTier(ExpertState state) {
  return state == ExpertState::kHost || state == ExpertState::kResident;
}

}  // namespace

ResidencyPolicy::ResidencyPolicy(const ResidencyPolicyOptions& options, int num_layers,
                                 int num_experts, int uses_per_token)
    : options_(options),
      num_layers_(num_layers),
      num_experts_(num_experts),
      uses_per_token_(std::max(uses_per_token, 1)),
      scores_(static_cast<size_t>(num_layers) * static_cast<size_t>(num_experts)) {
  candidates_.reserve(static_cast<size_t>(num_layers));
}

void ResidencyPolicy::Warm(absl::Span<const uint64_t> uses) {
  SWITCHYARD_CHECK(uses.size() == scores_.size());
  const double most = options_.half_life_tokens * uses_per_token_;
  const auto num_experts = static_cast<size_t>(num_experts_);
  for (size_t begin = 0; begin < scores_.size(); begin += num_experts) {
    double sum = 0;
    for (size_t i = begin; i < begin + num_experts; ++i) sum += static_cast<double>(uses[i]);
    const double scale = sum > most ? most / sum : 1;
    for (size_t i = begin; i < begin + num_experts; ++i) {
      scores_[i] = static_cast<float>(static_cast<double>(uses[i]) * scale);
    }
  }
}

void ResidencyPolicy::Observe(absl::Span<const uint32_t> uses) {
  SWITCHYARD_CHECK(uses.size() == scores_.size());
  const auto num_experts = static_cast<size_t>(num_experts_);
  for (size_t begin = 0; begin < scores_.size(); begin += num_experts) {
    const uint32_t* counts = uses.data() + begin;
    const double sum = std::accumulate(counts, counts + num_experts, 0.0);
    if (sum == 0) continue;
    const auto decay =
        static_cast<float>(std::exp2(-sum / uses_per_token_ / options_.half_life_tokens));
    float* scores = scores_.data() + begin;
    for (size_t e = 0; e < num_experts; ++e) {
      scores[e] = scores[e] * decay + static_cast<float>(counts[e]);
    }
  }
}

bool ResidencyPolicy::IsWorth(double promoted, double evicted) const {
  // A sum of Poisson counts with weights of at most 1 has at most its mean as variance, and so has
  // the difference of two such sums at most the sum of both.
  return promoted > options_.min_gain * evicted &&
         promoted - evicted > options_.min_deviations * std::sqrt(promoted + evicted);
}

void ResidencyPolicy::Propose(absl::Span<const ExpertState> states,
                              absl::Span<const int64_t> expert_bytes, int64_t budget_bytes,
                              std::vector<ExpertSwap>& out) {
  SWITCHYARD_CHECK(states.size() == scores_.size());
  candidates_.clear();
  for (int layer = 0; layer < num_layers_; ++layer) {
    const absl::Span<const float> score = scores(layer);
    const auto begin = static_cast<size_t>(layer) * static_cast<size_t>(num_experts_);
    int best = -1, worst = -1;
    bool is_moving = false;
    for (int e = 0; e < num_experts_; ++e) {
      const auto i = static_cast<size_t>(e);
      const ExpertState state = states[begin + i];
      is_moving = is_moving || state == ExpertState::kLoading;
      if (state == ExpertState::kFile) {
        if (best < 0 || score[i] > score[static_cast<size_t>(best)]) best = e;
      } else if (IsInFastTier(state)) {
        if (worst < 0 || score[i] < score[static_cast<size_t>(worst)]) worst = e;
      }
    }
    if (is_moving || best < 0 || worst < 0) continue;
    const double promoted = static_cast<double>(score[static_cast<size_t>(best)]);
    const double evicted = static_cast<double>(score[static_cast<size_t>(worst)]);
    if (!IsWorth(promoted, evicted)) continue;
    const auto bytes = static_cast<double>(expert_bytes[static_cast<size_t>(layer)]);
    candidates_.push_back({{layer, best, worst}, (promoted - evicted) / std::max(bytes, 1.0)});
  }
  // By layer where all else is the same: the order is defined.
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    if (a.saved_per_byte != b.saved_per_byte) return a.saved_per_byte > b.saved_per_byte;
    return a.swap.layer < b.swap.layer;
  });
  for (const Candidate& candidate : candidates_) {
    const int64_t bytes = expert_bytes[static_cast<size_t>(candidate.swap.layer)];
    if (bytes > budget_bytes) continue;
    budget_bytes -= bytes;
    out.push_back(candidate.swap);
  }
}

std::vector<int> ResidencyPolicy::Best(int layer, absl::Span<const int> among, int count) const {
  std::vector<int> order(among.begin(), among.end());
  const absl::Span<const float> score = scores(layer);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), static_cast<size_t>(std::max(count, 0))));
  return order;
}

std::vector<int> DivideSlots(int64_t budget_bytes, absl::Span<const int> num_present,
                             absl::Span<const int64_t> expert_bytes,
                             absl::Span<const uint64_t> uses, int num_experts) {
  const size_t num_layers = num_present.size();
  std::vector<int> slots(num_present.begin(), num_present.end());
  if (budget_bytes < 0) return slots;
  std::fill(slots.begin(), slots.end(), 0);
  const auto take = [&](size_t layer) {
    if (slots[layer] == num_present[layer] || expert_bytes[layer] > budget_bytes) return false;
    budget_bytes -= expert_bytes[layer];
    ++slots[layer];
    return true;
  };
  if (!uses.empty()) {
    // The k-th most used expert of a layer is worth as much as it is used. Layers of other bytes
    // an expert compete by uses per byte.
    struct Worth {
      double per_byte;
      size_t layer;
    };
    std::vector<Worth> worth;
    for (size_t layer = 0; layer < num_layers; ++layer) {
      for (int e = 0; e < num_experts; ++e) {
        const uint64_t count =
            uses[layer * static_cast<size_t>(num_experts) + static_cast<size_t>(e)];
        if (count == 0) continue;
        worth.push_back(
            {static_cast<double>(count) / static_cast<double>(expert_bytes[layer]), layer});
      }
    }
    std::stable_sort(worth.begin(), worth.end(),
                     [](const Worth& a, const Worth& b) { return a.per_byte > b.per_byte; });
    for (const Worth& next : worth) take(next.layer);
  }
  // What is left, or all without counts: one more for each layer, while any has room.
  for (bool has_taken = true; has_taken;) {
    has_taken = false;
    for (size_t layer = 0; layer < num_layers; ++layer) has_taken = take(layer) || has_taken;
  }
  return slots;
}

}  // namespace switchyard::worker
