#include "comm/communicator.h"

#include <set>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"
#include "comm/local_group.h"

namespace switchyard::comm {
namespace {

TEST(CommunicatorTest, NamesTellAllKindsApart) {
  std::set<std::string_view> names;
  for (int kind = 0; kind < kNumOpKinds; ++kind) names.insert(Name(static_cast<OpKind>(kind)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumOpKinds));
  EXPECT_EQ(names.count("unknown"), 0u);
  EXPECT_EQ(Name(static_cast<OpKind>(kNumOpKinds)), "unknown");
}

TEST(CommunicatorTest, KnowsElementSizes) {
  EXPECT_EQ(BytesOf(DataType::kF32), 4);
  EXPECT_EQ(BytesOf(DataType::kF16), 2);
  EXPECT_EQ(BytesOf(DataType::kBF16), 2);
  EXPECT_EQ(BytesOf(DataType::kI32), 4);
  EXPECT_EQ(BytesOf(DataType::kU8), 1);
}

// What the log says when `end` ends a group after 1100 operations of one rank.
std::string LogOf(LogLevel threshold, absl::Status (*end)(Communicator&)) {
  InitLogging({.threshold = threshold});
  auto group = CreateLocalGroup(2, {.group_id = "logged", .op_timeout = absl::Milliseconds(20)});
  EXPECT_TRUE(group.ok()) << group.status();
  Communicator& comm = *group->front();
  float x = 0;
  for (int i = 0; i < 1100; ++i) {
    EXPECT_TRUE(comm.AllReduce(&x, &x, 0, DataType::kF32, RedOp::kSum).ok());
  }
  testing::internal::CaptureStderr();
  EXPECT_FALSE(end(comm).ok());
  EXPECT_FALSE(end(comm).ok());
  const std::string log = testing::internal::GetCapturedStderr();
  InitLogging({});
  return log;
}

absl::Status TimeOut(Communicator& comm) { return comm.Barrier(absl::InfinitePast()); }
absl::Status AbortIt(Communicator& comm) {
  comm.Abort(absl::AbortedError("epoch 8"));
  return comm.Health();
}

int64_t CountOf(const std::string& text, std::string_view what) {
  int64_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(CommunicatorTest, TheFirstFailureShowsTheLastOperations) {
  const std::string log = LogOf(LogLevel::kInfo, TimeOut);
  EXPECT_EQ(CountOf(log, "waited for rank 1; its last operations:"), 1) << log;
  EXPECT_EQ(CountOf(log, "all_reduce #"), 7) << log;
  EXPECT_THAT(log, testing::HasSubstr("all_reduce #1100, 0 bytes, "));
  EXPECT_THAT(log, testing::HasSubstr("barrier #1101, 0 bytes, "));
}

TEST(CommunicatorTest, TheWholeRecordIsThereForDevelopers) {
  const std::string log = LogOf(LogLevel::kDebug, TimeOut);
  EXPECT_EQ(CountOf(log, "all_reduce #"), 1023) << log;
}

TEST(CommunicatorTest, AnAbortIsNoNews) { EXPECT_EQ(LogOf(LogLevel::kInfo, AbortIt), ""); }

}  // namespace
}  // namespace switchyard::comm
