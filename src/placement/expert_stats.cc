#include "placement/expert_stats.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace switchyard::placement {
namespace {

// Distribution of a count: element k is the chance of k.
using Counts = std::vector<double>;

// Sum of independent draws with these chances (Poisson binomial).
Counts CountsOf(const std::vector<double>& chances) {
  Counts counts = {1.0};
  for (const double p : chances) {
    counts.push_back(0);
    for (size_t k = counts.size() - 1; k > 0; --k) {
      counts[k] = counts[k] * (1 - p) + counts[k - 1] * p;
    }
    counts[0] *= 1 - p;
  }
  return counts;
}

// Chance that the counts add up to `total` and none of them is above its limit.
double ChanceOfTotal(const std::vector<Counts>& ranks, const std::vector<int>& limits, int total) {
  std::vector<double> sum(static_cast<size_t>(total) + 1, 0);
  sum[0] = 1;
  for (size_t r = 0; r < ranks.size(); ++r) {
    std::vector<double> next(sum.size(), 0);
    const int most = std::min(limits[r], static_cast<int>(ranks[r].size()) - 1);
    for (int k = 0; k <= most && k <= total; ++k) {
      const double p = ranks[r][static_cast<size_t>(k)];
      // Far tails change nothing.
      if (p < 1e-18) continue;
      for (int s = 0; s + k <= total; ++s) {
        next[static_cast<size_t>(s + k)] += p * sum[static_cast<size_t>(s)];
      }
    }
    sum = std::move(next);
  }
  return sum.back();
}

double ExpectedLargestOfTotal(absl::Span<const RankExperts> ranks,
                              const std::vector<Counts>& counts, int total) {
  // The largest work is one of these; between two of them nothing changes.
  std::vector<double> candidates;
  for (const RankExperts& rank : ranks) {
    const auto most = std::min(static_cast<int>(rank.chances.size()), total);
    for (int k = 0; k <= most; ++k) candidates.push_back(k + rank.offset);
  }
  std::sort(candidates.begin(), candidates.end());
  candidates.erase(std::unique(candidates.begin(), candidates.end(),
                               [](double a, double b) { return b - a < 1e-9; }),
                   candidates.end());
  const std::vector<int> no_limits(ranks.size(), total);
  const double all = ChanceOfTotal(counts, no_limits, total);
  if (all <= 0) return 0;
  // The ranks' mean cannot be above the largest: smaller candidates have no chance.
  double sum = total;
  for (const RankExperts& rank : ranks) sum += rank.offset;
  const double mean = sum / static_cast<double>(ranks.size());
  double expected = 0;
  double below = 0;
  for (const double most : candidates) {
    if (most < mean - 1) continue;
    std::vector<int> limits;
    for (const RankExperts& rank : ranks) {
      limits.push_back(static_cast<int>(std::floor(most - rank.offset + 1e-9)));
    }
    const double chance = ChanceOfTotal(counts, limits, total) / all;
    expected += most * (chance - below);
    below = chance;
    if (below > 1 - 1e-9) break;
  }
  return expected + (1 - below) * candidates.back();
}

}  // namespace

std::vector<double> ChanceOfExperts(absl::Span<const double> use, int num_experts, int top_k) {
  std::vector<double> chance(use.begin(), use.end());
  const double sum = std::accumulate(chance.begin(), chance.end(), 0.0);
  if (static_cast<int>(chance.size()) != num_experts || sum <= 0) {
    return std::vector<double>(static_cast<size_t>(num_experts),
                               static_cast<double>(top_k) / num_experts);
  }
  // An expert is chosen once a row at most; what is cut off is spread over the rest.
  double scale = top_k / sum;
  for (int pass = 0; pass < num_experts; ++pass) {
    double certain = 0, rest = 0;
    for (const double u : chance) (u * scale >= 1 ? certain : rest) += u * scale >= 1 ? 1 : u;
    if (rest <= 0 || certain >= top_k) break;
    const double next = (top_k - certain) / rest;
    if (std::abs(next - scale) <= 1e-12 * scale) break;
    scale = next;
  }
  for (double& u : chance) u = std::min(1.0, u * scale);
  return chance;
}

std::vector<double> ChanceInStep(absl::Span<const double> chance_of_row, double num_rows) {
  std::vector<double> chance;
  for (const double p : chance_of_row) chance.push_back(1 - std::pow(1 - p, num_rows));
  return chance;
}

double ExpectedDistinct(absl::Span<const double> chance_in_step) {
  return std::accumulate(chance_in_step.begin(), chance_in_step.end(), 0.0);
}

double ExpectedLargest(absl::Span<const RankExperts> ranks) {
  double distinct = 0;
  std::vector<Counts> counts;
  for (const RankExperts& rank : ranks) {
    distinct += ExpectedDistinct(rank.chances);
    counts.push_back(CountsOf(rank.chances));
  }
  const double low = std::floor(distinct + 1e-9);
  const double part = std::max(0.0, distinct - low);
  const double of_low = ExpectedLargestOfTotal(ranks, counts, static_cast<int>(low));
  if (part < 1e-9) return of_low;
  const double of_high = ExpectedLargestOfTotal(ranks, counts, static_cast<int>(low) + 1);
  // Where every expert is certain, there is no higher number.
  return of_high == 0 ? of_low : of_low * (1 - part) + of_high * part;
}

double MissShare(absl::Span<const double> use, double resident_share) {
  std::vector<double> sorted(use.begin(), use.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const double all = std::accumulate(sorted.begin(), sorted.end(), 0.0);
  const double num_resident = resident_share * static_cast<double>(sorted.size());
  if (all <= 0) return std::max(0.0, 1 - resident_share);
  double hit = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    hit += sorted[i] * std::clamp(num_resident - static_cast<double>(i), 0.0, 1.0);
  }
  return std::clamp(1 - hit / all, 0.0, 1.0);
}

}  // namespace switchyard::placement
