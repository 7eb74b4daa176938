// What steps cost: the ledgers of workers, summed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/worker/v1/step.pb.h"

namespace switchyard::coordinator {

// Cost of one stage, over all layers of all steps that were added.
struct StageTotal {
  double seconds = 0;
  int64_t weight_bytes = 0;  // bytes of weights that were read
};

// By worker::v1::Stage; the entries of STAGE_UNSPECIFIED and STAGE_IDLE stay 0.
using StageTotals = std::array<StageTotal, switchyard::worker::v1::Stage_ARRAYSIZE>;

// "attention" for STAGE_ATTENTION.
std::string StageName(int stage);

// One rank of several.
struct RankTotal {
  int rank = 0;
  StageTotals stages{};
  double seconds = 0;       // wall time of the steps on this rank
  double idle_seconds = 0;  // that it waited for the headers of these steps; not in `seconds`
  int64_t num_steps = 0;    // whose ledgers came

  double unattributed_seconds() const;
};

// From one rank to another.
struct LinkTotal {
  int from = 0;
  int to = 0;
  int64_t bytes = 0;
  int64_t num_messages = 0;
  double transfer_seconds = 0;  // of the receiver's STAGE_COLLECTIVE
  double flight_seconds = 0;    // that the messages were on their way, summed over them
};

struct StepCosts {
  StageTotals stages{};  // of the lead rank
  double seconds = 0;    // wall time of the steps
  // That the worker waited for the plans of these steps; not in `seconds`. Of a generation, without
  // the wait before its first step.
  double idle_seconds = 0;
  int64_t num_steps = 0;
  // With several ranks: each, the lead included, in order; and the links that carried something, by
  // destination and source. Empty with one rank.
  std::vector<RankTotal> ranks{};
  std::vector<LinkTotal> links{};

  // Adds one step.
  void Add(const switchyard::worker::v1::StepResult& result);
  StepCosts& operator+=(const StepCosts& other);

  // Wall time that no stage covers.
  double unattributed_seconds() const;

 private:
  RankTotal& Rank(int rank);
  LinkTotal& Link(int from, int to);
};

}  // namespace switchyard::coordinator
