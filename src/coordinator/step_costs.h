// What steps cost: the ledgers of workers, summed.
#pragma once

#include <array>
#include <cstdint>

#include "switchyard/worker/v1/step.pb.h"

namespace switchyard::coordinator {

// Cost of one stage, over all layers of all steps that were added.
struct StageTotal {
  double seconds = 0;
  int64_t weight_bytes = 0;  // bytes of weights that were read
};

struct StepCosts {
  // By worker::v1::Stage; the entries of STAGE_UNSPECIFIED and STAGE_IDLE stay 0.
  std::array<StageTotal, switchyard::worker::v1::Stage_ARRAYSIZE> stages{};
  double seconds = 0;  // wall time of the steps
  // That the worker waited for the plans of these steps; not in `seconds`. Of a generation, without
  // the wait before its first step.
  double idle_seconds = 0;
  int64_t num_steps = 0;

  // Adds one step.
  void Add(const switchyard::worker::v1::StepResult& result);
  StepCosts& operator+=(const StepCosts& other);

  // Wall time that no stage covers.
  double unattributed_seconds() const;
};

}  // namespace switchyard::coordinator
