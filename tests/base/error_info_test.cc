#include "base/error_info.h"

#include <string>

#include <gtest/gtest.h>

#include "base/status.h"

namespace switchyard {
namespace {

TEST(ErrorInfoTest, CarriesWhatWasSet) {
  absl::Status status = Unavailable("gone");
  EXPECT_EQ(ReasonOf(status), "");
  EXPECT_EQ(FieldOf(status), "");
  EXPECT_FALSE(RetryAfterOf(status).has_value());
  status = WithRetryAfter(WithReason(WithField(status, "sampling.top_p"), kWorkerLost), 0.25);
  EXPECT_EQ(ReasonOf(status), "WORKER_LOST");
  EXPECT_EQ(FieldOf(status), "sampling.top_p");
  EXPECT_EQ(RetryAfterOf(status), 0.25);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Message(status), "gone");
}

TEST(ErrorInfoTest, LaterValuesReplaceEarlierOnes) {
  const absl::Status status =
      WithReason(WithReason(ResourceExhausted("full"), kQueueFull), kDraining);
  EXPECT_EQ(ReasonOf(status), "DRAINING");
}

TEST(ErrorInfoTest, OkStaysOk) {
  EXPECT_EQ(WithReason(absl::OkStatus(), kDraining), absl::OkStatus());
  EXPECT_EQ(ReasonOf(absl::OkStatus()), "");
}

TEST(ErrorInfoTest, ContextKeepsDetails) {
  const absl::Status status =
      WithContext(WithRetryAfter(WithReason(Unavailable("gone"), kWorkerLost), 3), "rank 1");
  EXPECT_EQ(Message(status), "rank 1: gone");
  EXPECT_EQ(ReasonOf(status), "WORKER_LOST");
  EXPECT_EQ(RetryAfterOf(status), 3);
}

}  // namespace
}  // namespace switchyard
