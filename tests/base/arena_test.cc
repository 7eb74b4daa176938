#include "base/arena.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/process_memory.h"

namespace switchyard {
namespace {

using testing::HasSubstr;

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

TEST(ArenaTest, GivesAlignedZeroedMemoryFrontToBack) {
  absl::StatusOr<Arena> arena = Arena::Create(1000, {});
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_GE(arena->capacity_bytes(), 1000);
  std::byte* const first = arena->Allocate(1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % Arena::kBaseAlignment, 0u);
  std::byte* const second = arena->Allocate(100);
  EXPECT_EQ(second, first + 64);
  std::byte* const third = arena->Allocate(0);
  EXPECT_EQ(third, second + 128);
  EXPECT_EQ(arena->used_bytes(), ArenaBytes(1) + ArenaBytes(100));
  for (int i = 0; i < 192; ++i) EXPECT_EQ(first[i], std::byte{0});
  std::memset(first, 0xff, 192);
}

TEST(ArenaTest, HoldsExactlyTheSumOfItsAllocations) {
  const int64_t bytes = ArenaBytes(5000) + ArenaBytes(77);
  absl::StatusOr<Arena> arena = Arena::Create(bytes, {.huge_pages = true});
  ASSERT_TRUE(arena.ok()) << arena.status();
  std::memset(arena->Allocate(5000), 1, 5000);
  std::memset(arena->Allocate(77), 1, 77);
}

TEST(ArenaTest, MoveHandsOverTheMemory) {
  absl::StatusOr<Arena> created = Arena::Create(4096, {});
  ASSERT_TRUE(created.ok());
  Arena first = std::move(*created);
  std::byte* const data = first.Allocate(64);
  data[0] = std::byte{42};
  Arena second = std::move(first);
  EXPECT_EQ(second.used_bytes(), 64);
  EXPECT_EQ(data[0], std::byte{42});
  absl::StatusOr<Arena> third = Arena::Create(8192, {});
  ASSERT_TRUE(third.ok());
  second = std::move(*third);  // gives the first mapping back
  EXPECT_EQ(second.used_bytes(), 0);
  EXPECT_GE(second.capacity_bytes(), 8192);
}

TEST(ArenaTest, EmptyArenaIsFine) {
  absl::StatusOr<Arena> arena = Arena::Create(0, {});
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(arena->capacity_bytes(), 0);
  arena->Allocate(0);
}

TEST(ArenaTest, RefusesMoreThanTheHostHasFree) {
  // 32 TiB: more than a host has, less than the address space, so that only the check refuses.
  constexpr int64_t kTooMuch = int64_t{1} << 45;
  const absl::StatusOr<Arena> arena = Arena::Create(kTooMuch, {});
  ASSERT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(MessageOf(arena.status()), HasSubstr("wanted bytes: 35184372088832, free: "));
}

TEST(ArenaTest, ReportsWhatTheKernelRefuses) {
  for (int64_t bytes : {std::numeric_limits<int64_t>::max(), int64_t{1} << 62}) {
    const absl::StatusOr<Arena> arena = Arena::Create(bytes, {.require_available = false});
    EXPECT_EQ(arena.status().code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(ArenaDeathTest, AbortsWhenOverdrawn) {
  absl::StatusOr<Arena> arena = Arena::Create(4096, {});
  ASSERT_TRUE(arena.ok());
  arena->Allocate(4000);
  EXPECT_DEATH(arena->Allocate(100), "check failed");
  EXPECT_DEATH(arena->Allocate(-1), "check failed");
}

// Pages become resident when written, not before, and go with the arena.
TEST(ArenaTest, ResidentSizeIsWhatWasWritten) {
  constexpr int64_t kBytes = 64 << 20;
  // The kernel adds up its counters late, and the test itself allocates a little.
  constexpr int64_t kSlack = 8 << 20;
  const auto anonymous = [] { return ReadProcessMemory()->anonymous_bytes; };
  const int64_t before = anonymous();
  {
    absl::StatusOr<Arena> arena = Arena::Create(kBytes, {});
    ASSERT_TRUE(arena.ok());
    std::byte* const data = arena->Allocate(kBytes);
    EXPECT_LT(anonymous() - before, kSlack);
    std::memset(data, 1, kBytes / 2);
    EXPECT_NEAR(static_cast<double>(anonymous() - before), kBytes / 2, kSlack);
  }
  EXPECT_LT(anonymous() - before, kSlack);
}

}  // namespace
}  // namespace switchyard
