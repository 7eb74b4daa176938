#include "coordinator/request_check.h"

#include <cmath>
#include <limits>
#include <utility>

#include "base/error_info.h"
#include "base/status.h"
#include "base/status_macros.h"

namespace switchyard::coordinator {
namespace {

namespace v1 = switchyard::worker::v1;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

absl::Status AtSampling(absl::Status status, std::string_view name) {
  return WithField(std::move(status), fmt::format("sampling.{}", name));
}

// Not a number fails every comparison, so the test is for what is allowed.
absl::Status CheckRange(const char* name, bool present, double value, double low, double high) {
  if (!present || (value >= low && value <= high && std::isfinite(value))) return absl::OkStatus();
  return AtSampling(
      high == kInfinity
          ? InvalidArgument("{} must be at least {}, got: {}", name, low, value)
          : InvalidArgument("{} must be from {} to {}, got: {}", name, low, high, value),
      name);
}

absl::Status CheckSampling(const v1::SamplingParams& s, int32_t vocab_size) {
  SWITCHYARD_RETURN_IF_ERROR(
      CheckRange("temperature", s.has_temperature(), s.temperature(), 0, kInfinity));
  if (s.has_top_p() && !(s.top_p() > 0 && s.top_p() <= 1)) {
    return AtSampling(InvalidArgument("top_p must be above 0 and at most 1, got: {}", s.top_p()),
                      "top_p");
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckRange("min_p", s.has_min_p(), s.min_p(), 0, 1));
  if (s.has_repetition_penalty() && !(s.repetition_penalty() > 0)) {
    return AtSampling(
        InvalidArgument("repetition_penalty must be above 0, got: {}", s.repetition_penalty()),
        "repetition_penalty");
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckRange("repetition_penalty", s.has_repetition_penalty(),
                                        s.repetition_penalty(), 0, kInfinity));
  SWITCHYARD_RETURN_IF_ERROR(
      CheckRange("presence_penalty", s.has_presence_penalty(), s.presence_penalty(), -100, 100));
  SWITCHYARD_RETURN_IF_ERROR(
      CheckRange("frequency_penalty", s.has_frequency_penalty(), s.frequency_penalty(), -100, 100));
  for (const auto& [token_id, bias] : s.logit_bias()) {
    if (token_id >= static_cast<uint32_t>(vocab_size)) {
      return AtSampling(InvalidArgument("logit_bias names a token outside the vocabulary of {}: {}",
                                        vocab_size, token_id),
                        "logit_bias");
    }
    if (!std::isfinite(bias)) {
      return AtSampling(InvalidArgument("logit_bias of token {} is not a finite number", token_id),
                        "logit_bias");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTokenIds(const char* name, const std::vector<int32_t>& ids, int32_t vocab_size) {
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return WithField(InvalidArgument("{} holds a token outside the vocabulary of {}: {}", name,
                                       vocab_size, id),
                       name);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMinTokens(const GenerationRequest& request) {
  const int most = request.max_tokens.value_or(std::numeric_limits<int>::max());
  if (request.min_tokens >= 0 && request.min_tokens <= most) return absl::OkStatus();
  return WithField(
      request.max_tokens
          ? InvalidArgument("min_tokens must be from 0 to max_tokens ({}), got: {}", most,
                            request.min_tokens)
          : InvalidArgument("min_tokens must be at least 0, got: {}", request.min_tokens),
      "min_tokens");
}

}  // namespace

absl::Status CheckRequest(const GenerationRequest& request, const RequestLimits& limits) {
  const auto num_prompt = static_cast<int64_t>(request.prompt.size());
  if (num_prompt == 0) {
    return WithField(InvalidArgument("prompt is empty: at least one token is needed"), "prompt");
  }
  if (request.max_tokens && *request.max_tokens < 1) {
    return WithField(InvalidArgument("max_tokens must be at least 1, got: {}", *request.max_tokens),
                     "max_tokens");
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckMinTokens(request));
  if (request.time_limit_seconds &&
      !(*request.time_limit_seconds > 0 && std::isfinite(*request.time_limit_seconds))) {
    return WithField(
        InvalidArgument("time_limit_seconds must be above 0, got: {}", *request.time_limit_seconds),
        "time_limit_seconds");
  }
  const int64_t wanted = num_prompt + request.max_tokens.value_or(1);
  if (wanted > limits.max_context) {
    return WithReason(
        InvalidArgument("prompt and completion do not fit the context of {} tokens; prompt: {}, "
                        "completion: {}",
                        limits.max_context, num_prompt, request.max_tokens.value_or(1)),
        kContextLengthExceeded);
  }
  // The last sampled token is never computed, so it needs no cache.
  if (wanted - 1 > limits.max_sequence_tokens) {
    return WithReason(
        InvalidArgument("the cache holds {} tokens in all; prompt: {}, completion: {}",
                        limits.max_sequence_tokens, num_prompt, request.max_tokens.value_or(1)),
        kContextLengthExceeded);
  }
  if (request.num_logprobs && (*request.num_logprobs < 0 || *request.num_logprobs > 20)) {
    return WithField(
        InvalidArgument("logprobs must be from 0 to 20, got: {}", *request.num_logprobs),
        "logprobs");
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckTokenIds("prompt", request.prompt, limits.vocab_size));
  SWITCHYARD_RETURN_IF_ERROR(
      CheckTokenIds("stop_token_ids", request.stop_token_ids, limits.vocab_size));
  return CheckSampling(request.sampling, limits.vocab_size);
}

}  // namespace switchyard::coordinator
