// absl::Status to grpc::Status and back with all details, and defaults of servers and channels.
#pragma once

#include "absl/status/status.h"
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>

namespace switchyard {

// Largest messages: a prompt of 262,144 tokens is 0.8 MB as ids and 1.2 MB as text; workers also
// receive placements.
inline constexpr int kMaxClientMessageBytes = 16 << 20;
inline constexpr int kMaxWorkerMessageBytes = 64 << 20;

// Domain of google.rpc.ErrorInfo.
inline constexpr char kErrorDomain[] = "switchyard";

// Packs what base/error_info.h keeps in a status into google.rpc.Status: ErrorInfo for the reason
// (the code's name where there is none), RetryInfo for when to try again, BadRequest for the field
// at fault.
grpc::Status ToGrpcStatus(const absl::Status& status);

// The way back. Details that are malformed or of other types are left out.
absl::Status FromGrpcStatus(const grpc::Status& status);

// Message limits, and pings every 20 s with 10 s to answer: a peer that was stopped or cut off
// sends no reset. A port that is taken is refused instead of shared.
void ApplyServerDefaults(grpc::ServerBuilder& builder, int max_message_bytes);

// The same for the client's end.
grpc::ChannelArguments DefaultChannelArguments(int max_message_bytes);

}  // namespace switchyard
