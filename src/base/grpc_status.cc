#include "base/grpc_status.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include <grpc/grpc.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

#include "base/error_info.h"
#include "base/status.h"

namespace switchyard {
namespace {

constexpr int kKeepaliveMilliseconds = 20'000;
constexpr int kKeepaliveTimeoutMilliseconds = 10'000;
// A client may ping twice as often as the server does.
constexpr int kMinPingMilliseconds = kKeepaliveMilliseconds / 2;

void SetSeconds(double seconds, google::protobuf::Duration& duration) {
  const double whole = std::floor(seconds);
  duration.set_seconds(static_cast<int64_t>(whole));
  duration.set_nanos(static_cast<int32_t>((seconds - whole) * 1e9));
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(std::string(Message(status)));
  // Where no reason was given, the code's name is the reason.
  std::string reason = ReasonOf(status);
  google::rpc::ErrorInfo error_info;
  error_info.set_reason(reason.empty() ? absl::StatusCodeToString(status.code())
                                       : std::move(reason));
  error_info.set_domain(kErrorDomain);
  details.add_details()->PackFrom(error_info);
  if (const auto seconds = RetryAfterOf(status)) {
    google::rpc::RetryInfo info;
    SetSeconds(*seconds, *info.mutable_retry_delay());
    details.add_details()->PackFrom(info);
  }
  if (std::string field = FieldOf(status); !field.empty()) {
    google::rpc::BadRequest bad_request;
    auto& violation = *bad_request.add_field_violations();
    violation.set_field(std::move(field));
    violation.set_description(details.message());
    details.add_details()->PackFrom(bad_request);
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), details.message(),
                      details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status out(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return out;
  for (const auto& any : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    google::rpc::BadRequest bad_request;
    if (any.UnpackTo(&info) && info.domain() == kErrorDomain) {
      if (info.reason() != absl::StatusCodeToString(out.code())) {
        out = WithReason(std::move(out), info.reason());
      }
    } else if (any.UnpackTo(&retry)) {
      out = WithRetryAfter(std::move(out), static_cast<double>(retry.retry_delay().seconds()) +
                                               retry.retry_delay().nanos() * 1e-9);
    } else if (any.UnpackTo(&bad_request) && bad_request.field_violations_size() > 0) {
      out = WithField(std::move(out), bad_request.field_violations(0).field());
    }
  }
  return out;
}

void ApplyServerDefaults(grpc::ServerBuilder& builder, int max_message_bytes) {
  builder.SetMaxReceiveMessageSize(max_message_bytes);
  builder.SetMaxSendMessageSize(max_message_bytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMilliseconds);
  // A long prefill sends nothing, and pings must not end for that.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

grpc::ChannelArguments DefaultChannelArguments(int max_message_bytes) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(max_message_bytes);
  arguments.SetMaxSendMessageSize(max_message_bytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMilliseconds);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMilliseconds);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return arguments;
}

}  // namespace switchyard
