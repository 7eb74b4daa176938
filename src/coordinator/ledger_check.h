// What a worker may say of its steps' costs: bounds on everything that is added up later.
#pragma once

#include "absl/status/status.h"

#include "switchyard/worker/v1/step.pb.h"

namespace switchyard::coordinator {

// Checks times, stages, ranks and links of a result: finite and not negative, each rank and peer
// once, none beyond the largest group.
// Errors: kInvalidArgument names the field.
absl::Status CheckLedger(const switchyard::worker::v1::StepResult& result);

}  // namespace switchyard::coordinator
