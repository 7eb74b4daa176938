#include "comm/peer_clock.h"

#include <gtest/gtest.h>

namespace switchyard::comm {
namespace {

TEST(PeerClockTest, TheShortestRoundTripCounts) {
  PeerClock clock;
  // The peer's clock is 5000 behind; ways take 100 there and 100 back, or 100 and 900.
  clock.AddRoundTrip(10'000, 5'100, 11'000);
  clock.AddRoundTrip(20'000, 15'100, 20'200);
  clock.AddRoundTrip(30'000, 25'100, 31'000);
  EXPECT_EQ(clock.offset_ns(), 5'000);
  EXPECT_EQ(clock.Here(40'000), 45'000);
}

TEST(PeerClockTest, NothingArrivesBeforeItWasSent) {
  PeerClock clock;
  clock.AddRoundTrip(0, -5'000, 0);  // offset 5000, exactly
  // The peer's clock has run fast: 10 since then, so its pieces seem to come from the future.
  clock.Observe(1'010, 6'005, INT64_MAX);
  EXPECT_EQ(clock.offset_ns(), 4'995);
  // A late look at a piece tells nothing.
  clock.Observe(2'000, 99'000, INT64_MAX);
  EXPECT_EQ(clock.offset_ns(), 4'995);
}

TEST(PeerClockTest, TheOtherSideFindsTheOtherBound) {
  PeerClock clock;
  clock.AddRoundTrip(0, -5'000, 0);
  // The peer has found that this clock, seen from there, is at most -5020.
  clock.Observe(1'000, 99'000, -5'020);
  EXPECT_EQ(clock.offset_ns(), 5'020);
}

}  // namespace
}  // namespace switchyard::comm
