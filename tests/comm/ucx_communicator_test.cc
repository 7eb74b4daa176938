// What only real processes and networks can show: deaths, and links that are cut and come back.
#include "comm/ucx_communicator.h"

#include <cstdlib>
#include <fstream>
#include <sched.h>
#include <signal.h>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/status.h"
#include "rank_processes.h"

namespace switchyard::comm {
namespace {

using absl::StatusCode;
using testing::AnyOf;
using testing::HasSubstr;

CommOptions Options(int rank, int nranks) {
  CommOptions options;
  options.group_id = "ucx_communicator_test";
  options.rank = rank;
  options.nranks = nranks;
  options.op_timeout = absl::Seconds(60);
  options.init_timeout = absl::Seconds(60);
  return options;
}

absl::Status Sum(Communicator& comm, float* x, int64_t count) {
  return comm.AllReduce(x, x, count, DataType::kF32, RedOp::kSum);
}

class UcxProcessesTest : public testing::TestWithParam<int> {};

TEST_P(UcxProcessesTest, AKilledRankIsNamedWhereverOthersWait) {
  const int nranks = GetParam();
  const int victim = nranks - 1;
  for (const bool in_ring : {false, true}) {
    ProcessGroup group(nranks);
    const std::vector<pid_t> pids = group.StartAll([&](int rank) {
      ProcessGroup::Meeting meeting(group, rank);
      CommOptions options = Options(rank, nranks);
      options.op_timeout = absl::InfiniteDuration();
      auto comm = CreateUcxCommunicator(options, meeting);
      ASSERT_TRUE(comm.ok()) << comm.status();
      std::vector<float> x(2560, 1.0f);
      ASSERT_TRUE(Sum(**comm, x.data(), 2560).ok());
      EXPECT_EQ(x[2559], static_cast<float>(nranks));
      if (rank == victim) {
        group.AwaitCount(static_cast<uint32_t>(nranks - 1));
        raise(SIGKILL);
      }
      group.Count();
      const absl::Time begin = absl::Now();
      const absl::Status status = in_ring ? (*comm)->Broadcast(x.data(), 1, DataType::kF32, victim)
                                          : Sum(**comm, x.data(), 1);
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
      EXPECT_THAT(std::string(Message(status)), HasSubstr(fmt::format("rank {}", victim)));
      // The kernel closes the connection at once; the rest is what a loaded machine adds.
      EXPECT_LT(absl::Now() - begin, absl::Seconds(2));
      EXPECT_EQ((*comm)->Health(), status);
    });
    for (int rank = 0; rank < nranks; ++rank) {
      EXPECT_EQ(WaitForEnd(pids[static_cast<size_t>(rank)]), rank == victim ? -SIGKILL : 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, UcxProcessesTest, testing::Values(2, 3));

TEST(UcxCommunicatorTest, AStoppedRankIsFoundAtTheDeadline) {
  ProcessGroup group(2);
  const std::vector<pid_t> pids = group.StartAll([&](int rank) {
    ProcessGroup::Meeting meeting(group, rank);
    CommOptions options = Options(rank, 2);
    if (rank == 0) options.op_timeout = absl::Milliseconds(300);
    auto comm = CreateUcxCommunicator(options, meeting);
    ASSERT_TRUE(comm.ok()) << comm.status();
    float x = 1;
    if (rank == 1) {
      raise(SIGSTOP);
      const absl::Status status = Sum(**comm, &x, 1);
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
      EXPECT_THAT(std::string(Message(status)), HasSubstr("rank 0 reports"));
      return;
    }
    const absl::Status status = Sum(**comm, &x, 1);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(Message(status)), HasSubstr("waited for rank 1"));
    group.Count();
    group.AwaitCount(2);
  });
  group.AwaitCount(1);
  EXPECT_EQ(kill(pids[1], SIGCONT), 0);
  EXPECT_EQ(WaitForEnd(pids[1]), 0);
  group.Count();
  EXPECT_EQ(WaitForEnd(pids[0]), 0);
}

// ---- two hosts ----------------------------------------------------------------------------------

bool Shell(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// Puts this process into a network of its own. UCX lists devices by /sys, which shows those of the
// network that it was mounted in.
bool NewNetwork() {
  return unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 &&
         Shell("mount --make-rprivate / && mount -t sysfs sysfs /sys");
}

// Two processes, each in a network of its own, joined by a virtual cable: rank 0 holds the end
// "left", rank 1 the end "right". Both networks end with their processes.
class TwoHosts {
 public:
  explicit TwoHosts(ProcessGroup& group) : group_(group) {}

  // False where this needs rights that the process lacks.
  static bool Possible() {
    const pid_t pid = fork();
    if (pid == 0) {
      _exit(NewNetwork() && Shell("ip link add name left type veth peer name right") ? 0 : 1);
    }
    return WaitForEnd(pid) == 0;
  }

  // Waits until the kernel says that a rank's end is up, which takes it a moment; UCX leaves
  // devices out that are not.
  static void AwaitDevice(int rank) {
    const std::string path =
        fmt::format("/sys/class/net/{}/operstate", rank == 0 ? "left" : "right");
    std::string state;
    for (const absl::Time end = absl::Now() + absl::Seconds(20); absl::Now() < end;) {
      std::ifstream(path) >> state;
      if (state == "up") return;
      std::this_thread::yield();
    }
    FAIL() << path << ": " << state;
  }

  // Runs in both processes; counts the group up to 4.
  void Join(int rank) {
    if (rank == 1) {
      ASSERT_TRUE(NewNetwork());
      group_.PutNumber(getpid());
      group_.Count();
      group_.AwaitCount(2);
      ASSERT_TRUE(
          Shell("ip addr add 10.77.0.2/24 dev right && ip link set right up && ip link set lo up"));
    } else {
      ASSERT_TRUE(NewNetwork());
      group_.AwaitCount(1);
      ASSERT_TRUE(Shell("ip link add name left type veth peer name right"));
      ASSERT_TRUE(Shell(fmt::format("ip link set right netns {}", group_.number())));
      ASSERT_TRUE(
          Shell("ip addr add 10.77.0.1/24 dev left && ip link set left up && ip link set lo up"));
      group_.Count();
    }
    group_.Count();
    group_.AwaitCount(4);
    AwaitDevice(rank);
  }

 private:
  ProcessGroup& group_;
};

TEST(UcxCommunicatorTest, ACutLinkBetweenHostsIsNamedAndHealsWithTheNextGroup) {
  if (!TwoHosts::Possible()) GTEST_SKIP() << "no right to make networks (CAP_NET_ADMIN), or no ip";
  ProcessGroup group(2);
  TwoHosts hosts(group);
  const std::vector<pid_t> pids = group.StartAll([&](int rank) {
    hosts.Join(rank);
    if (testing::Test::HasFatalFailure()) return;
    ProcessGroup::Meeting meeting(group, rank);
    for (uint64_t epoch = 1; epoch <= 2; ++epoch) {
      CommOptions options = Options(rank, 2);
      options.epoch = epoch;
      options.op_timeout = absl::Milliseconds(1500);
      auto comm = CreateUcxCommunicator(options, meeting);
      ASSERT_TRUE(comm.ok()) << "epoch " << epoch << ": " << comm.status();
      for (int turn = 0; turn < 50; ++turn) {
        std::vector<float> x(20'000, static_cast<float>(rank));
        ASSERT_TRUE(Sum(**comm, x.data(), 20'000).ok()) << (*comm)->Health();
        ASSERT_EQ(x[19'999], 1.0f);
      }
      if (epoch == 2) {
        EXPECT_TRUE((*comm)->Barrier(absl::InfiniteFuture()).ok());
        break;
      }
      if (rank == 0) {
        ASSERT_TRUE(Shell("ip link set left down"));
      }
      float x = 1;
      const absl::Time begin = absl::Now();
      absl::Status status;
      while (status.ok()) status = Sum(**comm, &x, 1);
      EXPECT_THAT(status.code(), AnyOf(StatusCode::kUnavailable, StatusCode::kDeadlineExceeded));
      EXPECT_THAT(std::string(Message(status)), HasSubstr(fmt::format("rank {}", 1 - rank)));
      EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
      group.Count();
      group.AwaitCount(6);
      comm->reset();
      if (rank == 0) {
        ASSERT_TRUE(Shell("ip link set left up"));
      }
      group.Count();
      group.AwaitCount(8);
      TwoHosts::AwaitDevice(rank);
    }
  });
  for (pid_t pid : pids) EXPECT_EQ(WaitForEnd(pid), 0);
}

}  // namespace
}  // namespace switchyard::comm
