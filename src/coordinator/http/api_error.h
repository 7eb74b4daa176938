// Errors as clients of the HTTP APIs see them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

#include "coordinator/http/http_message.h"
#include "coordinator/http/json_text.h"

namespace switchyard::coordinator::http {

// Which API's form an error takes.
enum class ErrorShape {
  kOpenAi,     // {"error": {"message", "type", "param", "code"}}
  kAnthropic,  // {"type": "error", "error": {"type", "message"}}
};

struct ApiError {
  int status = 500;
  std::string message{};
  std::string type{};   // OpenAI's words
  std::string code{};   // "" = null
  std::string param{};  // field of the request; "" = null
  std::optional<double> retry_after_seconds{};
};

// Errors of our own code to HTTP's. What only concerns us (kInternal) keeps its text to itself.
ApiError ToApiError(const absl::Status& status);

// What has a status of HTTP only: 405, 408, 413 and their like.
ApiError HttpError(int status, std::string_view message);

// What a status of HTTP's is among our own codes, for counters.
absl::StatusCode CodeOf(int http_status);

Json ErrorJson(const ApiError& error, ErrorShape shape);
HttpResponse ErrorResponse(const ApiError& error, ErrorShape shape);

}  // namespace switchyard::coordinator::http
