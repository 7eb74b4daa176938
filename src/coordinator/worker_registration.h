// Whether a worker may register, and what the others are told of it.
#pragma once

#include <string>

#include "absl/status/status.h"

#include "switchyard/worker/v1/session.pb.h"

namespace switchyard::coordinator {

// Must be the same on both sides of a session.
inline constexpr uint32_t kWorkerProtocolVersion = 2;

// Whether the request is well formed and comes from a process that can work under `configure`.
//
// Errors: kFailedPrecondition (another protocol version, another model), kInvalidArgument (a field
//         is missing or too long).
absl::Status CheckRegistration(const switchyard::worker::v1::RegisterWorkerRequest& request,
                               const switchyard::worker::v1::Configure& configure);

// What a worker says is put into logs and answers: one line, not too long.
std::string OneLine(const std::string& text);

// "worker host-0 (pid 7)".
std::string NameOf(const switchyard::worker::v1::RegisterWorkerRequest& info);

// A google.rpc.Code and a text that a worker sent; an unknown code becomes kInternal.
absl::Status StatusFromWorker(int code, const std::string& message);

}  // namespace switchyard::coordinator
