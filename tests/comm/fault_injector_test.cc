#include "comm/fault_injector.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"

namespace switchyard::comm {
namespace {

using Delivery = FaultInjector::Delivery;
using testing::HasSubstr;

FaultInjector Parsed(std::string_view rules, int rank, int nranks) {
  auto injector = FaultInjector::Parse(rules, rank, nranks);
  EXPECT_TRUE(injector.ok()) << injector.status();
  return injector.ok() ? *std::move(injector) : FaultInjector();
}

TEST(FaultInjectorTest, DelaysFromTheMomentOfSending) {
  FaultInjector injector = Parsed("0->2 delay=200us", 2, 4);
  const Delivery delivery = injector.OnRead(0, OpKind::kAllReduce, 1000, 10240);
  EXPECT_EQ(delivery.kind, Delivery::kRead);
  EXPECT_EQ(delivery.at_ns, 201'000);
  EXPECT_EQ(injector.OnRead(1, OpKind::kAllReduce, 1000, 10240).at_ns, 1000);
}

TEST(FaultInjectorTest, ALinkCarriesOnePieceAtATime) {
  FaultInjector injector = Parsed("1->0 rate=2GB/s delay=5us", 0, 2);
  // 10,000 bytes at 2 bytes a nanosecond take 5 us; the second waits for the first.
  EXPECT_EQ(injector.OnRead(1, OpKind::kSend, 0, 10'000).at_ns, 10'000);
  EXPECT_EQ(injector.OnRead(1, OpKind::kSend, 1'000, 10'000).at_ns, 15'000);
  EXPECT_EQ(injector.OnRead(1, OpKind::kSend, 50'000, 10'000).at_ns, 60'000);
}

TEST(FaultInjectorTest, RulesForOtherReadersChangeNothing) {
  EXPECT_TRUE(Parsed("0->2 delay=200us; 2->0 drop", 1, 3).empty());
  EXPECT_TRUE(Parsed("", 0, 2).empty());
  EXPECT_TRUE(Parsed(" ; \n", 0, 2).empty());
}

TEST(FaultInjectorTest, StarsMeanAnyRank) {
  FaultInjector injector = Parsed("*->* delay=1ms", 1, 3);
  EXPECT_EQ(injector.OnRead(0, OpKind::kBarrier, 0, 0).at_ns, 1'000'000);
  EXPECT_EQ(injector.OnRead(2, OpKind::kBarrier, 0, 0).at_ns, 1'000'000);
}

TEST(FaultInjectorTest, OperationsCanBeChosen) {
  FaultInjector injector = Parsed("0->1 op=broadcast,recv drop", 1, 2);
  EXPECT_EQ(injector.OnRead(0, OpKind::kAllReduce, 0, 1).kind, Delivery::kRead);
  EXPECT_EQ(injector.OnRead(0, OpKind::kBroadcast, 0, 1).kind, Delivery::kDropped);
  EXPECT_EQ(injector.OnRead(0, OpKind::kSend, 0, 1).kind, Delivery::kDropped);
}

TEST(FaultInjectorTest, SomePiecesMayPassFirst) {
  FaultInjector injector = Parsed("0->1 freeze after=2", 1, 2);
  EXPECT_EQ(injector.OnRead(0, OpKind::kAllReduce, 0, 1).kind, Delivery::kRead);
  EXPECT_EQ(injector.OnRead(0, OpKind::kAllReduce, 0, 1).kind, Delivery::kRead);
  EXPECT_EQ(injector.OnRead(0, OpKind::kAllReduce, 0, 1).kind, Delivery::kFrozen);
}

TEST(FaultInjectorTest, LaterRulesReplaceEarlierOnes) {
  FaultInjector injector = Parsed("*->1 delay=1ms\n0->1 delay=2ms", 1, 3);
  EXPECT_EQ(injector.OnRead(0, OpKind::kBarrier, 0, 0).at_ns, 2'000'000);
  EXPECT_EQ(injector.OnRead(2, OpKind::kBarrier, 0, 0).at_ns, 1'000'000);
}

TEST(FaultInjectorTest, RefusesWhatIsNoRuleAndSaysWhatWouldBe) {
  const struct {
    const char* rules;
    const char* message;
  } kCases[] = {
      {"delay=200us", "does not begin with a pair of ranks, as in 0->2"},
      {"0-2 drop", "does not begin with a pair of ranks, as in 0->2"},
      {"a->2 drop", "'a' is no rank"},
      {"0->4 drop", "there is no rank 4; the last of 4 is 3"},
      {"-1->2 drop", "'-1' is no rank"},
      {"1->1 drop", "a rank has no link to itself"},
      {"0->1", "has no fault; give delay=, rate=, drop or freeze"},
      {"0->1 op=send", "has no fault"},
      {"0->1 delay=fast", "'fast' is no delay; write delay=200us"},
      {"0->1 delay=-1us", "'-1us' is no delay"},
      {"0->1 rate=2", "'2' is no rate; write rate=2GB/s"},
      {"0->1 rate=0GB/s", "'0GB/s' is no rate"},
      {"0->1 slow", "unknown 'slow'; there are delay="},
      {"0->1 op=gather drop", "no operation 'gather'; there are all_reduce, all_gather"},
      {"0->1 drop after=some", "'some' is no number of pieces"},
      {"0->1 drop; 0->1 sloow", "fault rule '0->1 sloow'"},
  };
  for (const auto& [rules, message] : kCases) {
    const auto injector = FaultInjector::Parse(rules, 0, 4);
    ASSERT_FALSE(injector.ok()) << rules;
    EXPECT_EQ(injector.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(Message(injector.status())), HasSubstr(message));
  }
}

}  // namespace
}  // namespace switchyard::comm
