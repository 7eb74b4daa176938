#include "app/experiment/child_process.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/status.h"

namespace switchyard::app {
namespace {

constexpr size_t kMaxLines = 4096;
// From SIGTERM to SIGKILL: servers drain at once when nothing runs.
constexpr std::chrono::milliseconds kStopTime{3000};
constexpr std::chrono::milliseconds kPollTime{5};

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& arguments,
                                                 const std::vector<int>& cpus) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ResourceExhausted("no pipe: {}", std::strerror(errno));
  // All memory that the child needs: between fork and exec it may not ask for any.
  const std::string program = "/proc/self/exe";
  std::vector<char*> argv = {const_cast<char*>("switchyard")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    if (!cpus.empty()) sched_setaffinity(0, sizeof(set), &set);
    // A terminal's interrupt is for the experiment, which ends the others itself.
    setpgid(0, 0);
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    return ResourceExhausted("no process: {}", std::strerror(errno));
  }
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return ChildProcess(pid, ends[0]);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::exchange(other.output_, -1)),
      exit_code_(other.exit_code_),
      rest_(std::move(other.rest_)),
      lines_(std::move(other.lines_)) {}

ChildProcess::~ChildProcess() {
  if (output_ >= 0) close(output_);
  if (pid_ <= 0 || exit_code_) return;
  kill(pid_, SIGTERM);
  const auto end = std::chrono::steady_clock::now() + kStopTime;
  while (!exit_code() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kPollTime);
  }
  if (exit_code_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ChildProcess::Poll() {
  char buffer[4096];
  ssize_t count = 0;
  while ((count = read(output_, buffer, sizeof(buffer))) > 0) {
    rest_.append(buffer, static_cast<size_t>(count));
    size_t end = 0;
    while ((end = rest_.find('\n')) != std::string::npos) {
      if (end > 0) lines_.push_back(rest_.substr(0, end));
      rest_.erase(0, end + 1);
      if (lines_.size() > kMaxLines) lines_.pop_front();
    }
  }
}

std::optional<std::string> ChildProcess::FindLine(const std::string& prefix) const {
  for (const std::string& line : lines_) {
    if (line.starts_with(prefix)) return line.substr(prefix.size());
  }
  return std::nullopt;
}

std::optional<int> ChildProcess::exit_code() {
  int status = 0;
  if (!exit_code_ && pid_ > 0 && waitpid(pid_, &status, WNOHANG) == pid_) {
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    Poll();
  }
  return exit_code_;
}

}  // namespace switchyard::app
