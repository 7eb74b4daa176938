#include "base/status.h"

#include <string>

#include <gtest/gtest.h>

#include "base/status_macros.h"

namespace switchyard {
namespace {

TEST(StatusTest, HelpersFormatAndCarryTheirCode) {
  const absl::Status status = DataLoss("tensor is truncated: {}, wanted bytes: {}", "a.weight", 12);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Message(status), "tensor is truncated: a.weight, wanted bytes: 12");
}

TEST(StatusTest, ContextGoesBeforeTheMessage) {
  const absl::Status status = WithContext(NotFound("no such key: {}", "k"), "model.gguf");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Message(status), "model.gguf: no such key: k");
  EXPECT_TRUE(WithContext(absl::OkStatus(), "model.gguf").ok());
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgument("odd: {}", value);
  return value / 2;
}

absl::Status QuarterInto(int value, int& out) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int half, Half(value));
  SWITCHYARD_ASSIGN_OR_RETURN(out, Half(half));
  SWITCHYARD_RETURN_IF_ERROR(Half(out).status());
  out = -1;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, ReturnTheFirstError) {
  int out = 0;
  EXPECT_EQ(Message(QuarterInto(3, out)), "odd: 3");
  EXPECT_EQ(Message(QuarterInto(6, out)), "odd: 3");
  EXPECT_EQ(out, 0);
  EXPECT_EQ(Message(QuarterInto(12, out)), "odd: 3");
  EXPECT_EQ(out, 3);
  EXPECT_TRUE(QuarterInto(8, out).ok());
  EXPECT_EQ(out, -1);
}

}  // namespace
}  // namespace switchyard
