#include "base/grpc_status.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

#include "base/error_info.h"
#include "base/status.h"

namespace switchyard {
namespace {

TEST(GrpcStatusTest, OkStaysOk) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK).ok());
}

TEST(GrpcStatusTest, EveryCodeAndMessageSurvives) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    EXPECT_EQ(static_cast<int>(ToGrpcStatus(status).error_code()), code);
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
  }
}

TEST(GrpcStatusTest, DetailsSurvive) {
  absl::Status status = WithReason(Unavailable("later"), kModelLoading);
  status = WithField(WithRetryAfter(std::move(status), 2.5), "spec.prompt");
  const absl::Status back = FromGrpcStatus(ToGrpcStatus(status));
  EXPECT_EQ(ReasonOf(back), kModelLoading);
  EXPECT_EQ(RetryAfterOf(back), 2.5);
  EXPECT_EQ(FieldOf(back), "spec.prompt");
}

TEST(GrpcStatusTest, DetailsAreThoseOfGoogleRpc) {
  const grpc::Status status =
      ToGrpcStatus(WithField(WithReason(InvalidArgument("too long"), kContextLengthExceeded), "f"));
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), grpc::INVALID_ARGUMENT);
  EXPECT_EQ(details.message(), "too long");
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "CONTEXT_LENGTH_EXCEEDED");
  EXPECT_EQ(info.domain(), "switchyard");
  google::rpc::BadRequest bad_request;
  ASSERT_TRUE(details.details(1).UnpackTo(&bad_request));
  EXPECT_EQ(bad_request.field_violations(0).field(), "f");
}

TEST(GrpcStatusTest, WithoutAReasonTheCodesNameIsOne) {
  const grpc::Status status = ToGrpcStatus(NotFound("no such model"));
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "NOT_FOUND");
}

TEST(GrpcStatusTest, MalformedAndForeignDetailsAreLeftOut) {
  EXPECT_EQ(FromGrpcStatus(grpc::Status(grpc::NOT_FOUND, "no", "\xff\xff")), NotFound("no"));
  google::rpc::ErrorInfo info;
  info.set_reason("THEIRS");
  info.set_domain("example.org");
  google::rpc::Status details;
  details.add_details()->PackFrom(info);
  EXPECT_EQ(
      ReasonOf(FromGrpcStatus(grpc::Status(grpc::NOT_FOUND, "no", details.SerializeAsString()))),
      "");
}

}  // namespace
}  // namespace switchyard
