#include "coordinator/step_costs.h"

namespace switchyard::coordinator {

namespace v1 = switchyard::worker::v1;

void StepCosts::Add(const v1::StepResult& result) {
  for (const v1::StageCost& cost : result.costs()) {
    // A newer worker may know stages that this side does not: their time stays unattributed.
    if (!v1::Stage_IsValid(cost.stage()) || cost.stage() == v1::STAGE_UNSPECIFIED ||
        cost.stage() == v1::STAGE_IDLE) {
      continue;
    }
    StageTotal& total = stages[static_cast<size_t>(cost.stage())];
    total.seconds += cost.seconds();
    total.weight_bytes += static_cast<int64_t>(cost.weight_bytes());
  }
  seconds += result.seconds();
  idle_seconds += result.idle_seconds();
  ++num_steps;
}

StepCosts& StepCosts::operator+=(const StepCosts& other) {
  for (size_t i = 0; i < stages.size(); ++i) {
    stages[i].seconds += other.stages[i].seconds;
    stages[i].weight_bytes += other.stages[i].weight_bytes;
  }
  seconds += other.seconds;
  idle_seconds += other.idle_seconds;
  num_steps += other.num_steps;
  return *this;
}

double StepCosts::unattributed_seconds() const {
  double rest = seconds;
  for (const StageTotal& total : stages) rest -= total.seconds;
  return rest;
}

}  // namespace switchyard::coordinator
