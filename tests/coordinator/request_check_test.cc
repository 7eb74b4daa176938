#include "coordinator/request_check.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/error_info.h"

namespace switchyard::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr RequestLimits kLimits{
    .max_context = 4096, .vocab_size = 100, .max_sequence_tokens = 4096};

GenerationRequest Request(int num_prompt_tokens, std::optional<int> max_tokens = std::nullopt) {
  GenerationRequest request;
  request.prompt.assign(num_prompt_tokens, 5);
  request.max_tokens = max_tokens;
  return request;
}

void ExpectRefused(const GenerationRequest& request, std::string_view text) {
  const absl::Status status = CheckRequest(request, kLimits);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(text)));
}

void ExpectTooLong(const GenerationRequest& request) {
  ExpectRefused(request, "prompt and completion do not fit the context of 4096 tokens");
  EXPECT_EQ(ReasonOf(CheckRequest(request, kLimits)), kContextLengthExceeded);
}

TEST(RequestCheckTest, MinTokensAreAtMostMaxTokens) {
  GenerationRequest request = Request(10, 5);
  request.min_tokens = 5;
  EXPECT_TRUE(CheckRequest(request, kLimits).ok());
  request.min_tokens = 6;
  ExpectRefused(request, "min_tokens must be from 0 to max_tokens (5), got: 6");
  EXPECT_EQ(FieldOf(CheckRequest(request, kLimits)), "min_tokens");
  request.max_tokens.reset();
  EXPECT_TRUE(CheckRequest(request, kLimits).ok());
  request.min_tokens = -1;
  ExpectRefused(request, "min_tokens must be at least 0, got: -1");
}

TEST(RequestCheckTest, TimeLimitIsAboveZero) {
  GenerationRequest request = Request(10);
  request.time_limit_seconds = 0.001;
  EXPECT_TRUE(CheckRequest(request, kLimits).ok());
  for (const double seconds : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity()}) {
    request.time_limit_seconds = seconds;
    ExpectRefused(request, "time_limit_seconds");
  }
}

TEST(RequestCheckTest, NamesTheFieldAtFault) {
  GenerationRequest request = Request(10);
  request.sampling.set_temperature(-1);
  EXPECT_EQ(FieldOf(CheckRequest(request, kLimits)), "sampling.temperature");
  request.sampling.set_temperature(1);
  request.stop_token_ids = {100};
  EXPECT_EQ(FieldOf(CheckRequest(request, kLimits)), "stop_token_ids");
}

TEST(RequestCheckTest, PromptAndCompletionFitTheContext) {
  EXPECT_TRUE(CheckRequest(Request(4095, 1), kLimits).ok());
  EXPECT_TRUE(CheckRequest(Request(4090, 6), kLimits).ok());
  EXPECT_TRUE(CheckRequest(Request(4095), kLimits).ok());
  ExpectTooLong(Request(4096, 1));
  ExpectTooLong(Request(4097, 1));
  ExpectTooLong(Request(4090, 7));
  ExpectTooLong(Request(4096));
}

TEST(RequestCheckTest, TheCacheLimitsToo) {
  RequestLimits limits = kLimits;
  limits.max_sequence_tokens = 128;
  EXPECT_TRUE(CheckRequest(Request(128, 1), limits).ok());
  EXPECT_FALSE(CheckRequest(Request(128, 2), limits).ok());
}

TEST(RequestCheckTest, EmptyPromptAndZeroTokensAreRefused) {
  ExpectRefused(Request(0, 1), "prompt is empty");
  ExpectRefused(Request(1, 0), "max_tokens");
  ExpectRefused(Request(1, -4), "max_tokens");
}

TEST(RequestCheckTest, TokensOutsideTheVocabularyAreRefused) {
  GenerationRequest request = Request(3);
  request.prompt[1] = 100;
  ExpectRefused(request, "100");
  request.prompt[1] = -1;
  ExpectRefused(request, "-1");
  request = Request(3);
  request.stop_token_ids = {100};
  ExpectRefused(request, "stop_token_ids");
  request = Request(3);
  (*request.sampling.mutable_logit_bias())[100] = 5;
  ExpectRefused(request, "logit_bias");
}

TEST(RequestCheckTest, SamplingValuesOutOfRangeAreRefused) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (float value : {-0.1f, nan, infinity}) {
    GenerationRequest request = Request(1);
    request.sampling.set_temperature(value);
    ExpectRefused(request, "temperature");
    request = Request(1);
    request.sampling.set_repetition_penalty(value);
    ExpectRefused(request, "repetition_penalty");
    request = Request(1);
    request.sampling.set_presence_penalty(value == -0.1f ? -1000 : value);
    ExpectRefused(request, "presence_penalty");
    request = Request(1);
    (*request.sampling.mutable_logit_bias())[3] = value == -0.1f ? nan : value;
    ExpectRefused(request, "logit_bias");
  }
  for (float value : {-0.1f, 1.1f, nan}) {
    GenerationRequest request = Request(1);
    request.sampling.set_top_p(value);
    ExpectRefused(request, "top_p");
    request = Request(1);
    request.sampling.set_min_p(value);
    ExpectRefused(request, "min_p");
  }
  // The worker refuses it, which would end the whole engine.
  GenerationRequest request = Request(1);
  request.sampling.set_top_p(0);
  ExpectRefused(request, "top_p");
}

}  // namespace
}  // namespace switchyard::coordinator
