// How often experts are chosen, and what follows: how many a step reads, and how unevenly ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace switchyard::placement {

// Uses counted or weighted in any unit, [num_layers][num_experts]. Empty = unknown: experts are
// taken to be used alike.
using ExpertUse = std::vector<std::vector<double>>;

// Chance of each expert of a layer to be among the `top_k` of a row: `use` scaled to a sum of
// top_k, none above 1. All alike if `use` is empty or zero.
std::vector<double> ChanceOfExperts(absl::Span<const double> use, int num_experts, int top_k);

// The same for a step of `num_rows` rows that choose independently: 1 - (1 - p)^num_rows.
std::vector<double> ChanceInStep(absl::Span<const double> chance_of_row, double num_rows);

// Expected number of different experts: the sum of the chances.
double ExpectedDistinct(absl::Span<const double> chance_in_step);

// One rank's experts of a layer.
struct RankExperts {
  std::vector<double> chances;  // in the step, of each of its experts
  double offset = 0;            // what the rank has to do besides, in units of one expert
};

// Expected largest work of a rank, in units of one expert: number of its experts that are chosen,
// and its offset. Ranks' numbers are those of independent draws that add up to the expected
// number of different experts (a fraction mixes the two whole numbers beside it); for equal chances
// this is the multivariate hypergeometric distribution, exactly.
double ExpectedLargest(absl::Span<const RankExperts> ranks);

// Share of a row's choices that miss when of each layer the most used experts are resident up to
// `resident_share` of them, by the use of that layer.
double MissShare(absl::Span<const double> use, double resident_share);

}  // namespace switchyard::placement
