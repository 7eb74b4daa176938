#include "comm/member_card.h"

#include <string>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/status.h"

namespace switchyard::comm {
namespace {

MemberCard Card() {
  CommOptions options;
  options.group_id = "model: a b\n";
  options.epoch = uint64_t{1} << 63;
  options.rank = 3;
  options.nranks = 5;
  MemberCard card = MakeMemberCard(BackendKind::kShm, options);
  card.threads.allowed_cpus = {0, 7, 64};
  card.address = std::string("\0 address 3:\xff", 13);
  card.status = Unavailable("no room: {}", 7);
  return card;
}

TEST(MemberCardTest, ArrivesAsItWasSent) {
  const MemberCard sent = Card();
  const auto got = ParseMemberCard(Serialize(sent));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(Serialize(*got), Serialize(sent));
  EXPECT_EQ(got->group_id, sent.group_id);
  EXPECT_EQ(got->epoch, sent.epoch);
  EXPECT_EQ(got->threads.allowed_cpus, sent.threads.allowed_cpus);
  EXPECT_EQ(got->address, sent.address);
  EXPECT_EQ(got->status, sent.status);
}

TEST(MemberCardTest, EveryCutIsRefused) {
  const std::string text = Serialize(Card());
  for (size_t length = 0; length < text.size(); ++length) {
    const auto got = ParseMemberCard(text.substr(0, length));
    ASSERT_FALSE(got.ok()) << length;
    EXPECT_EQ(got.status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(MemberCardTest, ChangedBytesAreReadOrRefusedAndHarmNothing) {
  const std::string text = Serialize(Card());
  for (size_t at = 0; at < text.size(); ++at) {
    for (const char byte : {'\0', '9', ':', ' ', '\xff'}) {
      std::string changed = text;
      changed[at] = byte;
      (void)ParseMemberCard(changed);
    }
  }
}

TEST(MemberCardTest, KnowsWhenThisProcessStarted) {
  EXPECT_GT(ProcessStartTime(static_cast<int>(getpid())), 0u);
  EXPECT_EQ(ProcessStartTime(-1), 0u);
}

}  // namespace
}  // namespace switchyard::comm
