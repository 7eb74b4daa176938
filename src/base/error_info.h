// What programs read from a status beside its code: reason, field at fault, when to try again.
//
// The details are set where the cause is known and read where a status leaves the process. They
// travel as payloads of the status, so whoever passes it on need not know them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace switchyard {

// Reasons that a client may branch on.
inline constexpr std::string_view kContextLengthExceeded = "CONTEXT_LENGTH_EXCEEDED";
inline constexpr std::string_view kModelLoading = "MODEL_LOADING";
inline constexpr std::string_view kDraining = "DRAINING";  // ends what runs, takes nothing new
inline constexpr std::string_view kWorkerLost = "WORKER_LOST";
inline constexpr std::string_view kQueueFull = "QUEUE_FULL";
inline constexpr std::string_view kSlowReader = "SLOW_READER";  // a client did not take its events

// Each function returns an OK status as it is, and replaces an earlier value.
absl::Status WithReason(absl::Status status, std::string_view reason);
// `seconds` from now, at least 0.
absl::Status WithRetryAfter(absl::Status status, double seconds);
// Field of the request that is at fault, such as "sampling.temperature".
absl::Status WithField(absl::Status status, std::string_view field);

// Each returns what was set; nothing ("" where the type is a string) if it was not.
std::string ReasonOf(const absl::Status& status);
std::optional<double> RetryAfterOf(const absl::Status& status);
std::string FieldOf(const absl::Status& status);

}  // namespace switchyard
