// Runs one generation on the caller's thread, for commands that measure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "coordinator/generator.h"

namespace switchyard::app {

// Waits for the end and returns the last event. An interrupt cancels the generation.
// Errors: kCancelled after an interrupt, what Start() returns, kUnavailable for a failed worker.
absl::StatusOr<coordinator::GenerationEvent> RunGeneration(coordinator::Generator& generator,
                                                           coordinator::GenerationRequest request);

}  // namespace switchyard::app
