#include "coordinator/request_limits.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/error_info.h"
#include "base/status.h"
#include "coordinator/request_gate.h"

namespace switchyard::coordinator {
namespace {

using ::testing::HasSubstr;

struct Case {
  const char* field;
  std::function<void(RequestInfo&, GenerationRequest&)> break_it;
};

TEST(RequestLimitsTest, AcceptsEveryLimitExactly) {
  RequestInfo info;
  info.request_id.assign(kMaxRequestIdBytes, 'x');
  for (size_t i = 0; i < kMaxLabels; ++i) {
    info.labels[std::string(kMaxLabelBytes - 1, 'k') + std::to_string(i)] =
        std::string(kMaxLabelBytes, 'v');
  }
  GenerationRequest request;
  request.stop.assign(kMaxStopStrings, std::string(kMaxStopBytes, 's'));
  request.num_logprobs = kMaxLogprobs;
  for (uint32_t i = 0; i < kMaxLogitBias; ++i) {
    (*request.sampling.mutable_logit_bias())[i] = i % 2 == 0 ? 100.0f : -100.0f;
  }
  request.sampling.set_presence_penalty(-2);
  request.sampling.set_frequency_penalty(2);
  const absl::Status status = CheckRequestLimits(info, request);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(RequestLimitsTest, RefusesOneMoreAndNamesTheField) {
  const Case kCases[] = {
      {"request_id", [](auto& info, auto&) { info.request_id.assign(129, 'x'); }},
      {"request_id", [](auto& info, auto&) { info.request_id = "a\nb"; }},
      {"request_id", [](auto& info, auto&) { info.request_id = "\xff"; }},
      {"labels",
       [](auto& info, auto&) {
         for (int i = 0; i < 9; ++i) info.labels[std::to_string(i)] = "";
       }},
      {"labels", [](auto& info, auto&) { info.labels[std::string(65, 'k')] = ""; }},
      {"labels", [](auto& info, auto&) { info.labels["k"] = std::string(65, 'v'); }},
      {"stop", [](auto&, auto& request) { request.stop.assign(17, "s"); }},
      {"stop", [](auto&, auto& request) { request.stop = {std::string(257, 's')}; }},
      {"stop", [](auto&, auto& request) { request.stop = {""}; }},
      {"stop_token_ids", [](auto&, auto& request) { request.stop_token_ids.resize(1025); }},
      {"cache_salt", [](auto&, auto& request) { request.cache_salt.assign(257, 's'); }},
      {"logprobs", [](auto&, auto& request) { request.num_logprobs = 21; }},
      {"logprobs", [](auto&, auto& request) { request.num_logprobs = -1; }},
      {"sampling.logit_bias",
       [](auto&, auto& request) {
         for (uint32_t i = 0; i < 1025; ++i) (*request.sampling.mutable_logit_bias())[i] = 0;
       }},
      {"sampling.logit_bias",
       [](auto&, auto& request) { (*request.sampling.mutable_logit_bias())[0] = 100.5f; }},
      {"sampling.logit_bias",
       [](auto&, auto& request) { (*request.sampling.mutable_logit_bias())[0] = NAN; }},
      {"sampling.presence_penalty",
       [](auto&, auto& request) { request.sampling.set_presence_penalty(2.5f); }},
      {"sampling.frequency_penalty",
       [](auto&, auto& request) { request.sampling.set_frequency_penalty(-2.5f); }},
  };
  for (const Case& c : kCases) {
    RequestInfo info;
    GenerationRequest request;
    c.break_it(info, request);
    const absl::Status status = CheckRequestLimits(info, request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.field;
    EXPECT_EQ(FieldOf(status), c.field);
    EXPECT_THAT(std::string(Message(status)), HasSubstr(c.field));
  }
}

TEST(CheckedNumberTest, IntegersMustBeInRange) {
  EXPECT_EQ(*CheckedInteger("n", int64_t{5}, 0, 5), 5);
  EXPECT_FALSE(CheckedInteger("n", int64_t{-1}, 0, 5).ok());
  EXPECT_FALSE(CheckedInteger("n", uint64_t{6}, 0, 5).ok());
  EXPECT_FALSE(CheckedInteger("n", std::numeric_limits<uint64_t>::max(), -5, 5).ok());
  EXPECT_EQ(FieldOf(CheckedInteger("n", int64_t{6}, 0, 5).status()), "n");
  EXPECT_EQ(CheckedInteger("n", int64_t{6}, 0, 5).status().message(),
            "n must be an integer from 0 to 5, got: 6");
}

TEST(CheckedNumberTest, IntegersWrittenAsFloatsMustBeIntegers) {
  EXPECT_EQ(*CheckedInteger("n", 3.0, 0, 5), 3);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (double value :
       {2.5, double{NAN}, double{INFINITY}, -double{INFINITY}, 1e300, 0x1p63, -1.0}) {
    EXPECT_FALSE(CheckedInteger("n", value, 0, kMost).ok()) << value;
  }
}

TEST(CheckedNumberTest, FloatsMustBeNumbersInRange) {
  EXPECT_EQ(*CheckedFloat("x", 0.5, 0, 1), 0.5f);
  for (double value : {-0.1, 1.1, double{NAN}, double{INFINITY}}) {
    EXPECT_EQ(FieldOf(CheckedFloat("x", value, 0, 1).status()), "x") << value;
  }
  EXPECT_FALSE(CheckedFloat("x", 1e300, 0, 1e308).ok()) << "no float holds it";
}

}  // namespace
}  // namespace switchyard::coordinator
