// What made a run slow, found in ledgers alone: a link that is late or narrow, a rank that
// something else keeps from computing.
#pragma once

#include <string>
#include <vector>

#include "app/experiment/experiment_result.h"

namespace switchyard::app {

enum class Cause {
  kLinkDelay,  // every message of a link takes `size` seconds, whatever it holds
  kLinkRate,   // a link moves `size` bytes a second
  kSlowRank,   // a rank computes `size` times as long for the same work
};

struct Finding {
  Cause cause = Cause::kLinkDelay;
  int from = -1;  // of a link
  int to = -1;    // of a link
  int rank = -1;  // of a slow rank
  double size = 0;
  std::string text{};  // in one sentence, with the figures that it rests on
};

// Looks at one run. `reference` is the same arrangement undisturbed, or null: then links and ranks
// of the run are compared with each other, which needs at least two of them and finds less.
//
// A link must be late in the least of all samples against the largest of the reference, a rank slow
// in three quarters of them, so that scatter alone makes no finding.
std::vector<Finding> Diagnose(const CombinationResult& run, const CombinationResult* reference);

// Of run number `index`: the undisturbed one of the same arrangement; null if there is none, or it
// is the run itself.
const CombinationResult* ReferenceOf(const ExperimentResult& result, size_t index);

// Shares of a token's time on the critical rank: "computing 61 %, waiting 20 %, ...". Empty without
// samples.
std::string WhereTimeGoes(const CombinationResult& run);

}  // namespace switchyard::app
