// What only real processes can show: deaths, stops, and what is left in /dev/shm.
#include "comm/shm_communicator.h"

#include <filesystem>
#include <signal.h>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "comm/local_group.h"
#include "rank_processes.h"

namespace switchyard::comm {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

CommOptions Options(int rank, int nranks) {
  CommOptions options;
  options.group_id = "shm_communicator_test";
  options.rank = rank;
  options.nranks = nranks;
  options.slot_bytes = 1024;
  options.op_timeout = absl::Seconds(60);
  return options;
}

absl::Status Sum(Communicator& comm, float* x, int64_t count) {
  return comm.AllReduce(x, x, count, DataType::kF32, RedOp::kSum);
}

// Segments that a process, or any, has left in /dev/shm.
std::vector<std::string> Segments(pid_t pid) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("switchyard-") && name.find(fmt::format("-{}-", pid)) != name.npos) {
      found.push_back(name);
    }
  }
  return found;
}

class ShmProcessesTest : public testing::TestWithParam<int> {};

TEST_P(ShmProcessesTest, ProcessesSumAndLeaveNothingBehind) {
  const int nranks = GetParam();
  ProcessGroup group(nranks);
  const std::vector<pid_t> pids = group.StartAll([&](int rank) {
    ProcessGroup::Meeting meeting(group, rank);
    auto comm = CreateShmCommunicator(Options(rank, nranks), meeting);
    ASSERT_TRUE(comm.ok()) << comm.status();
    for (int turn = 0; turn < 200; ++turn) {
      std::vector<float> x(2560, static_cast<float>(rank + turn));
      ASSERT_TRUE(Sum(**comm, x.data(), 2560).ok());
      const float expected = static_cast<float>(nranks * turn + nranks * (nranks - 1) / 2);
      ASSERT_EQ(x.front(), expected);
      ASSERT_EQ(x.back(), expected);
    }
    // Nothing is left even if it is killed now.
    EXPECT_THAT(Segments(getpid()), testing::IsEmpty());
  });
  for (pid_t pid : pids) EXPECT_EQ(WaitForEnd(pid), 0);
}

TEST_P(ShmProcessesTest, AKilledRankIsNamedWhereverOthersWait) {
  const int nranks = GetParam();
  const int victim = nranks - 1;
  for (const bool in_ring : {false, true}) {
    ProcessGroup group(nranks);
    const std::vector<pid_t> pids = group.StartAll([&](int rank) {
      ProcessGroup::Meeting meeting(group, rank);
      CommOptions options = Options(rank, nranks);
      options.op_timeout = absl::InfiniteDuration();
      auto comm = CreateShmCommunicator(options, meeting);
      ASSERT_TRUE(comm.ok()) << comm.status();
      float x = 1;
      ASSERT_TRUE(Sum(**comm, &x, 1).ok());
      if (rank == victim) {
        group.AwaitCount(static_cast<uint32_t>(nranks - 1));
        raise(SIGKILL);
      }
      group.Count();
      const absl::Time begin = absl::Now();
      const absl::Status status =
          in_ring ? (*comm)->Broadcast(&x, 1, DataType::kF32, victim) : Sum(**comm, &x, 1);
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
      EXPECT_THAT(std::string(Message(status)), HasSubstr(fmt::format("rank {}", victim)));
      EXPECT_THAT(std::string(Message(status)), HasSubstr("has died"));
      // A slice of sleep, 0.1 s, and what a loaded machine adds.
      EXPECT_LT(absl::Now() - begin, absl::Seconds(2));
      EXPECT_EQ((*comm)->Health(), status);
    });
    for (int rank = 0; rank < nranks; ++rank) {
      EXPECT_EQ(WaitForEnd(pids[static_cast<size_t>(rank)]), rank == victim ? -SIGKILL : 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShmProcessesTest, testing::Values(2, 3, 4));

TEST(ShmCommunicatorTest, AStoppedRankIsFoundAtTheDeadlineAndFencedWhenItGoesOn) {
  ProcessGroup group(2);
  const pid_t stopped = group.Start(1, [&](int rank) {
    ProcessGroup::Meeting meeting(group, rank);
    auto comm = CreateShmCommunicator(Options(rank, 2), meeting);
    ASSERT_TRUE(comm.ok()) << comm.status();
    raise(SIGSTOP);
    float x = 1;
    const absl::Status status = Sum(**comm, &x, 1);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(Message(status)), HasSubstr("rank 0 reports"));
  });
  const pid_t waiting = group.Start(0, [&](int rank) {
    ProcessGroup::Meeting meeting(group, rank);
    CommOptions options = Options(rank, 2);
    options.op_timeout = absl::Milliseconds(300);
    auto comm = CreateShmCommunicator(options, meeting);
    ASSERT_TRUE(comm.ok()) << comm.status();
    float x = 1;
    const absl::Status status = Sum(**comm, &x, 1);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(Message(status)), HasSubstr("waited for rank 1"));
    group.Count();
    group.AwaitCount(2);
  });
  group.AwaitCount(1);
  EXPECT_EQ(kill(stopped, SIGCONT), 0);
  EXPECT_EQ(WaitForEnd(stopped), 0);
  group.Count();
  EXPECT_EQ(WaitForEnd(waiting), 0);
}

// Kills its process when it is used.
class DeadlyRendezvous final : public Rendezvous {
 public:
  absl::StatusOr<std::vector<std::string>> Exchange(std::string_view, const std::string&,
                                                    absl::Time) override {
    raise(SIGKILL);
    return Internal("lives on");
  }
};

TEST(ShmCommunicatorTest, TheNextGroupRemovesTheSegmentOfOneThatDiedWhileItFormed) {
  ProcessGroup group(1);
  const pid_t victim = group.Start(0, [&](int rank) {
    DeadlyRendezvous rendezvous;
    (void)CreateShmCommunicator(Options(rank, 2), rendezvous);
  });
  ASSERT_EQ(WaitForEnd(victim), -SIGKILL);
  EXPECT_EQ(Segments(victim).size(), 1u);
  LocalRendezvous rendezvous(1);
  EXPECT_TRUE(CreateShmCommunicator(Options(0, 1), rendezvous.of(0)).ok());
  EXPECT_THAT(Segments(victim), testing::IsEmpty());
}

TEST(ShmCommunicatorTest, TooSmallASharedMemoryIsRefusedWithTheSizes) {
  LocalRendezvous rendezvous(2);
  // About 8 TiB: more than any /dev/shm.
  std::vector<absl::Status> statuses(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      CommOptions options = Options(rank, 2);
      options.slot_bytes = int64_t{1} << 30;
      options.num_slots = 4096;
      statuses[static_cast<size_t>(rank)] =
          CreateShmCommunicator(options, rendezvous.of(rank)).status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(Message(status)), HasSubstr("/dev/shm has "));
  }
  EXPECT_THAT(std::string(Message(statuses[1])), HasSubstr("rank 0: "));
}

}  // namespace
}  // namespace switchyard::comm
