#include "base/error_info.h"

#include <charconv>
#include <fmt/format.h>
#include <utility>

#include "absl/strings/cord.h"

#include "base/status.h"

namespace switchyard {
namespace {

constexpr std::string_view kReasonPayload = "switchyard.reason";
constexpr std::string_view kRetryAfterPayload = "switchyard.retry_after_seconds";
constexpr std::string_view kFieldPayload = "switchyard.field";

absl::Status WithPayload(absl::Status status, std::string_view type, std::string_view value) {
  if (!status.ok()) status.SetPayload(ToAbsl(type), absl::Cord(ToAbsl(value)));
  return status;
}

std::string PayloadOf(const absl::Status& status, std::string_view type) {
  const auto payload = status.GetPayload(ToAbsl(type));
  return payload ? std::string(*payload) : std::string();
}

}  // namespace

absl::Status WithReason(absl::Status status, std::string_view reason) {
  return WithPayload(std::move(status), kReasonPayload, reason);
}

absl::Status WithRetryAfter(absl::Status status, double seconds) {
  return WithPayload(std::move(status), kRetryAfterPayload, fmt::format("{}", seconds));
}

absl::Status WithField(absl::Status status, std::string_view field) {
  return WithPayload(std::move(status), kFieldPayload, field);
}

std::string ReasonOf(const absl::Status& status) { return PayloadOf(status, kReasonPayload); }

std::optional<double> RetryAfterOf(const absl::Status& status) {
  const std::string text = PayloadOf(status, kRetryAfterPayload);
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return seconds;
}

std::string FieldOf(const absl::Status& status) { return PayloadOf(status, kFieldPayload); }

}  // namespace switchyard
