#include "coordinator/request_limits.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/error_info.h"
#include "base/status.h"
#include "base/status_macros.h"
#include "coordinator/request_gate.h"
#include "model/utf8.h"

namespace switchyard::coordinator {
namespace {

absl::Status CheckSize(std::string_view field, std::string_view what, size_t size, size_t limit) {
  if (size <= limit) return absl::OkStatus();
  return WithField(InvalidArgument("{} must have at most {} {}, got: {}", field, limit, what, size),
                   field);
}

// Ids and labels go to logs and reports as they are.
absl::Status CheckPrintable(std::string_view field, std::string_view text) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (model::IsValidUtf8(text) && !std::ranges::any_of(text, is_control)) return absl::OkStatus();
  return WithField(InvalidArgument("{} must be UTF-8 without control characters", field), field);
}

absl::Status CheckInfo(const RequestInfo& info) {
  SWITCHYARD_RETURN_IF_ERROR(
      CheckSize("request_id", "bytes", info.request_id.size(), kMaxRequestIdBytes));
  SWITCHYARD_RETURN_IF_ERROR(CheckPrintable("request_id", info.request_id));
  SWITCHYARD_RETURN_IF_ERROR(CheckSize("labels", "entries", info.labels.size(), kMaxLabels));
  for (const auto& [key, value] : info.labels) {
    for (const std::string& text : {key, value}) {
      SWITCHYARD_RETURN_IF_ERROR(
          CheckSize("labels", "bytes in a key or value", text.size(), kMaxLabelBytes));
      SWITCHYARD_RETURN_IF_ERROR(CheckPrintable("labels", text));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStop(const GenerationRequest& request) {
  SWITCHYARD_RETURN_IF_ERROR(CheckSize("stop", "strings", request.stop.size(), kMaxStopStrings));
  for (const std::string& stop : request.stop) {
    SWITCHYARD_RETURN_IF_ERROR(CheckSize("stop", "bytes in a string", stop.size(), kMaxStopBytes));
    if (stop.empty()) {
      return WithField(InvalidArgument("stop must not hold an empty string"), "stop");
    }
    if (!model::IsValidUtf8(stop)) {
      return WithField(InvalidArgument("stop must be valid UTF-8"), "stop");
    }
  }
  return CheckSize("stop_token_ids", "entries", request.stop_token_ids.size(), kMaxStopTokenIds);
}

absl::Status CheckSampling(const switchyard::worker::v1::SamplingParams& sampling) {
  SWITCHYARD_RETURN_IF_ERROR(CheckSize("sampling.logit_bias", "entries",
                                       static_cast<size_t>(sampling.logit_bias_size()),
                                       kMaxLogitBias));
  for (const auto& [token_id, bias] : sampling.logit_bias()) {
    SWITCHYARD_RETURN_IF_ERROR(
        CheckedFloat("sampling.logit_bias", bias, -kMaxAbsLogitBias, kMaxAbsLogitBias).status());
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckedFloat("sampling.presence_penalty", sampling.presence_penalty(),
                                          -kMaxAbsPenalty, kMaxAbsPenalty)
                                 .status());
  return CheckedFloat("sampling.frequency_penalty", sampling.frequency_penalty(), -kMaxAbsPenalty,
                      kMaxAbsPenalty)
      .status();
}

template <typename T>
absl::Status OutOfRange(std::string_view field, T value, int64_t low, int64_t high) {
  return WithField(
      InvalidArgument("{} must be an integer from {} to {}, got: {}", field, low, high, value),
      field);
}

}  // namespace

absl::Status CheckRequestLimits(const RequestInfo& info, const GenerationRequest& request) {
  SWITCHYARD_RETURN_IF_ERROR(CheckInfo(info));
  SWITCHYARD_RETURN_IF_ERROR(CheckStop(request));
  SWITCHYARD_RETURN_IF_ERROR(
      CheckSize("cache_salt", "bytes", request.cache_salt.size(), kMaxCacheSaltBytes));
  if (request.num_logprobs) {
    SWITCHYARD_RETURN_IF_ERROR(
        CheckedInteger("logprobs", int64_t{*request.num_logprobs}, 0, kMaxLogprobs).status());
  }
  return CheckSampling(request.sampling);
}

absl::StatusOr<int64_t> CheckedInteger(std::string_view field, int64_t value, int64_t low,
                                       int64_t high) {
  if (value < low || value > high) return OutOfRange(field, value, low, high);
  return value;
}

absl::StatusOr<int64_t> CheckedInteger(std::string_view field, uint64_t value, int64_t low,
                                       int64_t high) {
  if (std::cmp_less(value, low) || std::cmp_greater(value, high)) {
    return OutOfRange(field, value, low, high);
  }
  return static_cast<int64_t>(value);
}

absl::StatusOr<int64_t> CheckedInteger(std::string_view field, double value, int64_t low,
                                       int64_t high) {
  // Up to 2^53 every integer is a double; above, a double says nothing about the integer meant.
  constexpr double kLargest = 9007199254740992;
  if (!(std::abs(value) <= kLargest) || value != std::floor(value)) {
    return OutOfRange(field, value, low, high);
  }
  return CheckedInteger(field, static_cast<int64_t>(value), low, high);
}

absl::StatusOr<float> CheckedFloat(std::string_view field, double value, double low, double high) {
  // Not a number fails every comparison, so the test is for what is allowed.
  if (value >= low && value <= high && std::isfinite(static_cast<float>(value))) {
    return static_cast<float>(value);
  }
  return WithField(
      InvalidArgument("{} must be a number from {} to {}, got: {}", field, low, high, value),
      field);
}

}  // namespace switchyard::coordinator
