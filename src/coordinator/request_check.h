// What a generation must satisfy before it reaches the engine's thread.
#pragma once

#include "absl/status/status.h"

#include "coordinator/generator.h"

namespace switchyard::coordinator {

// Limits that requests are checked against.
struct RequestLimits {
  int64_t max_context = 0;  // prompt and completion together, in tokens
  int32_t vocab_size = 0;
  int64_t max_sequence_tokens = 0;  // what all cache pages together can hold
};

// Errors: kInvalidArgument, naming the field and the allowed range; the field is also a detail of
// the status (base/error_info.h). Where prompt and completion do not fit, the reason is
// kContextLengthExceeded.
absl::Status CheckRequest(const GenerationRequest& request, const RequestLimits& limits);

}  // namespace switchyard::coordinator
