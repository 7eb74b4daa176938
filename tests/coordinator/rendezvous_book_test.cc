#include "coordinator/rendezvous_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard::coordinator {
namespace {

using ::testing::ElementsAre;

switchyard::worker::v1::RendezvousEntry Entry(const std::string& key, const std::string& data) {
  switchyard::worker::v1::RendezvousEntry entry;
  entry.set_key(key);
  entry.set_data(data);
  return entry;
}

TEST(RendezvousBookTest, IsCompleteWithTheLastRankAndOrdersByRank) {
  RendezvousBook book;
  book.Begin(3);
  EXPECT_FALSE(book.Add(2, Entry("k", "c")).value());
  EXPECT_FALSE(book.Add(0, Entry("k", "a")).value());
  EXPECT_FALSE(book.Add(0, Entry("other", "x")).value());
  EXPECT_TRUE(book.Add(1, Entry("k", "")).value());
  EXPECT_THAT(book.complete("k").entries(), ElementsAre("a", "", "c"));
}

TEST(RendezvousBookTest, RefusesWhatIsTooMuch) {
  RendezvousBook book;
  book.Begin(2);
  const auto code_of = [&](const std::string& key, const std::string& data) {
    return book.Add(0, Entry(key, data)).status().code();
  };
  EXPECT_EQ(code_of("", "x"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(std::string(kMaxRendezvousKeyBytes + 1, 'k'), "x"),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of("k", std::string(kMaxRendezvousEntryBytes + 1, 'x')),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of("k", std::string(kMaxRendezvousEntryBytes, 'x')), absl::StatusCode::kOk);
  EXPECT_EQ(code_of("k", "again"), absl::StatusCode::kInvalidArgument);
  for (size_t i = 1; i < kMaxRendezvousKeys; ++i) {
    EXPECT_EQ(code_of("k" + std::to_string(i), "x"), absl::StatusCode::kOk);
  }
  EXPECT_EQ(code_of("one more", "x"), absl::StatusCode::kInvalidArgument);
  book.Begin(2);
  EXPECT_EQ(code_of("one more", "x"), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace switchyard::coordinator
