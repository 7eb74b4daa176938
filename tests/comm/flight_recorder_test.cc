#include "comm/flight_recorder.h"

#include <string>

#include <gtest/gtest.h>

namespace switchyard::comm {
namespace {

TEST(FlightRecorderTest, KeepsTheLastOperationsOldestFirst) {
  FlightRecorder recorder;
  EXPECT_TRUE(recorder.Last(10).empty());
  for (uint32_t seq = 1; seq <= 1500; ++seq) {
    const int64_t number = recorder.Begin(seq, OpKind::kAllReduce, seq * 4, seq * 100);
    recorder.End(number, seq * 100 + 10, seq * 100 + 30);
  }
  const auto all = recorder.Last(FlightRecorder::kCapacity);
  ASSERT_EQ(all.size(), 1024u);
  EXPECT_EQ(all.front().seq, 477u);
  EXPECT_EQ(all.back().seq, 1500u);
  EXPECT_EQ(all.back().num_bytes, 6000);
  EXPECT_EQ(all.back().start_ns, 150'010);
  EXPECT_EQ(recorder.Last(3).front().seq, 1498u);
  EXPECT_EQ(recorder.Last(100'000).size(), 1024u);
}

TEST(FlightRecorderTest, DescribesFinishedAndRunningOperations) {
  FlightRecorder recorder;
  const int64_t number = recorder.Begin(7, OpKind::kBroadcast, 80, 1'000'000);
  recorder.Begin(8, OpKind::kRecv, 4, 3'000'000);
  recorder.End(number, 1'500'000, 1'750'000);
  const auto records = recorder.Last(2);
  EXPECT_EQ(Describe(records[0], 4'000'000),
            "broadcast #7, 80 bytes, 3.000 ms ago, waited 0.500 ms, took 0.250 ms");
  EXPECT_EQ(Describe(records[1], 4'000'000), "recv #8, 4 bytes, 1.000 ms ago, not finished");
}

}  // namespace
}  // namespace switchyard::comm
