// The supervisor with shells for workers.
#include "app/supervisor.h"

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "app/exit_code.h"
#include "base/log.h"
#include "base/status.h"

namespace {

// How many of the next pipes this process is refused, as if it had too many files open. A low
// RLIMIT_NOFILE would refuse them to UBSan as well, which opens pipes to look at objects, with
// pipe(), and takes an object for none when it cannot.
std::atomic<int> num_pipes_to_refuse{0};

}  // namespace

// In place of the C library's, in this program.
extern "C" int pipe2(int ends[2], int flags) noexcept {
  if (num_pipes_to_refuse > 0) {
    --num_pipes_to_refuse;
    errno = EMFILE;
    return -1;
  }
  return static_cast<int>(syscall(SYS_pipe2, ends, flags));
}

namespace switchyard::app {
namespace {

struct Exit {
  uint32_t pid = 0;
  absl::Status status;
  bool returns = false;
};

class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest() { InitLogging({.threshold = LogLevel::kOff}); }

  // Supervises `sh -c script`.
  void Start(const std::string& script) {
    SupervisorOptions options;
    options.program = "/bin/sh";
    options.processes.push_back(
        {.worker_id = "w", .prefix = "shell: ", .arguments = {"-c", script}});
    options.first_retry_seconds = 0.001;
    options.max_retry_seconds = 0.01;
    options.stop_seconds = 0.1;
    options.on_start = [this](const std::string& worker_id, uint32_t pid) {
      EXPECT_EQ(worker_id, "w");
      std::lock_guard lock(mutex_);
      starts_.push_back(pid);
      changed_.notify_all();
    };
    options.on_exit = [this](const std::string& worker_id, uint32_t pid, const absl::Status& status,
                             bool returns) {
      EXPECT_EQ(worker_id, "w");
      std::lock_guard lock(mutex_);
      exits_.push_back({pid, status, returns});
      changed_.notify_all();
    };
    supervisor_ = std::make_unique<Supervisor>(options);
  }

  // The process id of the start of that number, from 1 on.
  uint32_t WaitForStart(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return starts_.size() >= count; });
    return starts_[count - 1];
  }
  Exit WaitForExit(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return exits_.size() >= count; });
    return exits_[count - 1];
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<uint32_t> starts_;
  std::vector<Exit> exits_;
  std::unique_ptr<Supervisor> supervisor_;  // first to go
};

TEST_F(SupervisorTest, ProcessThatEndsIsStartedAgain) {
  Start("exit 5");
  for (size_t i = 1; i <= 4; ++i) {
    const uint32_t pid = WaitForStart(i);
    const Exit end = WaitForExit(i);
    EXPECT_EQ(end.pid, pid);
    EXPECT_TRUE(end.returns);
    EXPECT_EQ(Message(end.status), "worker w ended with code 5");
  }
  WaitForStart(5);
  EXPECT_GE(supervisor_->num_restarts(), 4);
}

TEST_F(SupervisorTest, ProcessThatCannotWorkIsNotStartedAgain) {
  Start("echo 'switchyard: no such model' >&2; exit 3");
  const Exit end = WaitForExit(1);
  EXPECT_FALSE(end.returns);
  EXPECT_EQ(Message(end.status), "worker w ended with code 3: no such model");
  EXPECT_EQ(ExitCodeOf(end.status), ExitCode::kModelRejected);
  supervisor_.reset();
  EXPECT_EQ(starts_.size(), 1u);
}

TEST_F(SupervisorTest, FirstProcessWithoutFitHardwareIsTheEnd) {
  Start("echo 'switchyard: memory is short' >&2; exit 4");
  const Exit end = WaitForExit(1);
  EXPECT_FALSE(end.returns);
  EXPECT_EQ(Message(end.status), "worker w ended with code 4: memory is short");
  EXPECT_EQ(ExitCodeOf(end.status), ExitCode::kHardwareUnfit);
}

TEST_F(SupervisorTest, HardwareThatWasFitMayBeSoAgain) {
  std::string been_here = ::testing::TempDir() + "/switchyard-supervisor-XXXXXX";
  ASSERT_NE(mkdtemp(been_here.data()), nullptr);
  // The first one is killed; all others lack memory.
  Start(fmt::format(
      "mkdir {}/once 2>/dev/null && kill -9 $$; echo 'switchyard: memory is short' >&2; exit 4",
      been_here));
  EXPECT_TRUE(WaitForExit(1).returns);
  for (const size_t i : {2, 3}) {
    const Exit end = WaitForExit(i);
    EXPECT_TRUE(end.returns);
    EXPECT_EQ(Message(end.status), "worker w ended with code 4: memory is short");
  }
  supervisor_.reset();
  std::filesystem::remove_all(been_here);
}

TEST_F(SupervisorTest, KillsThePresentProcessOnly) {
  Start("exec sleep 1000");
  const uint32_t first = WaitForStart(1);
  supervisor_->Kill("other", first);
  supervisor_->Kill("w", first + 1);
  supervisor_->Kill("w", first);
  const Exit end = WaitForExit(1);
  EXPECT_EQ(end.pid, first);
  EXPECT_EQ(Message(end.status), "worker w was ended by signal 9");
  const uint32_t second = WaitForStart(2);
  supervisor_->Kill("w", first);  // is not the present one any more
  supervisor_.reset();            // asks the second one to end
  EXPECT_EQ(exits_.size(), 1u);
  EXPECT_EQ(kill(static_cast<pid_t>(second), 0), -1);  // reaped: no zombie is left
}

TEST_F(SupervisorTest, ProcessThatDoesNotListenIsKilledInTheEnd) {
  // The shell may be asked before it ignores the signal: then it ends at once, which is as well.
  Start("trap '' TERM; while :; do sleep 1000; done");
  const uint32_t pid = WaitForStart(1);
  supervisor_.reset();
  EXPECT_EQ(kill(static_cast<pid_t>(pid), 0), -1);
}

TEST_F(SupervisorTest, LackOfFileDescriptorsIsNotTheEnd) {
  Start("exec sleep 1000");
  const uint32_t pid = WaitForStart(1);
  num_pipes_to_refuse = 2;
  supervisor_->Kill("w", pid);
  for (const Exit& failed : {WaitForExit(2), WaitForExit(3)}) {
    EXPECT_EQ(failed.pid, 0u);
    EXPECT_TRUE(failed.returns);
    EXPECT_EQ(Message(failed.status), "worker w could not be started: Too many open files");
  }
  EXPECT_NE(WaitForStart(2), pid);
  EXPECT_EQ(num_pipes_to_refuse, 0);
  EXPECT_EQ(supervisor_->num_restarts(), 1);
}

TEST_F(SupervisorTest, ProgramThatIsNotThereIsTheEnd) {
  SupervisorOptions options;
  options.program = "/nonexistent";
  options.processes.push_back({.worker_id = "w", .prefix = "", .arguments = {}});
  options.on_start = [](const auto&, uint32_t) {};
  options.on_exit = [this](const std::string&, uint32_t pid, const absl::Status& status,
                           bool returns) {
    std::lock_guard lock(mutex_);
    exits_.push_back({pid, status, returns});
    changed_.notify_all();
  };
  supervisor_ = std::make_unique<Supervisor>(options);
  EXPECT_FALSE(WaitForExit(1).returns);
}

TEST_F(SupervisorTest, ProcessInheritsNoFileDescriptor) {
  constexpr int kNumber = 77;
  const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(dup2(file, kNumber), kNumber);  // and without O_CLOEXEC
  close(file);
  Start("[ -e /proc/self/fd/77 ] && exit 9; exit 8");
  EXPECT_EQ(Message(WaitForExit(1).status), "worker w ended with code 8");
  supervisor_.reset();
  close(kNumber);
}

TEST_F(SupervisorTest, ProcessInheritsNoIgnoredSignal) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);  // as the program does
  Start("kill -PIPE $$; exit 7");
  EXPECT_EQ(Message(WaitForExit(1).status),
            fmt::format("worker w was ended by signal {}", SIGPIPE));
  supervisor_.reset();
  std::signal(SIGPIPE, before);
}

TEST_F(SupervisorTest, ProcessIsInAGroupOfItsOwn) {
  // Field 5 of its stat is the process group.
  Start("read -r stat < /proc/self/stat; set -- $stat; [ $5 = $1 ] && exit 8; exit 9");
  EXPECT_EQ(Message(WaitForExit(1).status), "worker w ended with code 8");
}

}  // namespace
}  // namespace switchyard::app
