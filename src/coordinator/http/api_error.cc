#include "coordinator/http/api_error.h"

#include <cmath>
#include <fmt/format.h>

#include "base/error_info.h"
#include "base/status.h"

namespace switchyard::coordinator::http {
namespace {

// Fields of the inner request that HTTP clients know without the prefix.
std::string Param(std::string_view field) {
  constexpr std::string_view kSampling = "sampling.";
  if (field.starts_with(kSampling)) field.remove_prefix(kSampling.size());
  return std::string(field);
}

// Sets status, type and code by the status code and its reason.
void Classify(const absl::Status& status, std::string_view reason, ApiError& error) {
  const auto set = [&](int http_status, std::string_view type, std::string_view code = "") {
    error.status = http_status;
    error.type = type;
    error.code = code;
  };
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return set(400, "invalid_request_error",
                 reason == kContextLengthExceeded ? "context_length_exceeded" : "");
    case absl::StatusCode::kUnauthenticated:
      return set(401, "authentication_error", "invalid_api_key");
    case absl::StatusCode::kPermissionDenied:
      return set(403, "permission_error");
    case absl::StatusCode::kNotFound:
      return set(404, "invalid_request_error", error.param == "model" ? "model_not_found" : "");
    case absl::StatusCode::kAlreadyExists:
      return set(409, "invalid_request_error");
    case absl::StatusCode::kResourceExhausted:
      return set(429, "rate_limit_error", reason == kSlowReader ? "slow_reader" : "");
    case absl::StatusCode::kUnimplemented:
      return set(501, "invalid_request_error", "unsupported");
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:  // by the server: it is stopping
      return set(503, reason == kWorkerLost ? "server_error" : "unavailable_error");
    case absl::StatusCode::kDeadlineExceeded:
      return set(504, "timeout_error");
    default:
      error.message = "internal error";
      return set(500, "server_error");
  }
}

std::string_view AnthropicType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 || status == 501 ? "invalid_request_error" : "api_error";
  }
}

Json StringOrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

ApiError ToApiError(const absl::Status& status) {
  ApiError error;
  error.message = Message(status);
  error.param = Param(FieldOf(status));
  error.retry_after_seconds = RetryAfterOf(status);
  Classify(status, ReasonOf(status), error);
  return error;
}

ApiError HttpError(int status, std::string_view message) {
  ApiError error{.status = status, .message = std::string(message)};
  error.type = status >= 500 ? "server_error" : "invalid_request_error";
  if (status == 501) error.type = "invalid_request_error";
  if (status == 503) error.type = "unavailable_error";
  return error;
}

absl::StatusCode CodeOf(int http_status) {
  switch (http_status) {
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 408:
    case 504:
      return absl::StatusCode::kDeadlineExceeded;
    case 409:
      return absl::StatusCode::kAlreadyExists;
    case 413:
    case 429:
    case 431:
      return absl::StatusCode::kResourceExhausted;
    case 405:
    case 501:
      return absl::StatusCode::kUnimplemented;
    case 503:
      return absl::StatusCode::kUnavailable;
    default:
      return http_status < 500 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kInternal;
  }
}

Json ErrorJson(const ApiError& error, ErrorShape shape) {
  if (shape == ErrorShape::kAnthropic) {
    return {{"type", "error"},
            {"error", {{"type", AnthropicType(error.status)}, {"message", error.message}}}};
  }
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", StringOrNull(error.param)},
            {"code", StringOrNull(error.code)}}}};
}

HttpResponse ErrorResponse(const ApiError& error, ErrorShape shape) {
  HttpResponse response{.status = error.status, .body = JsonText(ErrorJson(error, shape))};
  if (error.retry_after_seconds) {
    // Whole seconds, and never "at once".
    const double seconds = std::max(1.0, std::ceil(*error.retry_after_seconds));
    response.headers.push_back({"Retry-After", fmt::format("{:.0f}", seconds)});
  }
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

}  // namespace switchyard::coordinator::http
