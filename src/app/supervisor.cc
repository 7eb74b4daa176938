#include "app/supervisor.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <optional>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "app/exit_code.h"
#include "app/terminal.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace switchyard::app {
namespace {

constexpr int kCannotStart = 127;       // exit code of a child that could not become the program
constexpr size_t kMaxLineBytes = 4096;  // of a child's output that is passed on as one line
constexpr char kErrorPrefix[] = "switchyard: ";  // of the line with which the program fails

double Now() { return MonotonicClock::Get().NowSeconds(); }

// A file descriptor that is closed with its owner.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Not in glibc's headers of all releases that we build on.
int OpenPidFd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }
void SendSignal(const Fd& pid_fd, int signal) {
  syscall(SYS_pidfd_send_signal, pid_fd.get(), signal, nullptr, 0);
}

// Forks with all signals blocked in the child. Returns what fork() does.
pid_t ForkWithoutSignals() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid != 0) {
    const int fork_errno = errno;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    errno = fork_errno;
  }
  return pid;
}

// What the child of a fork does; this process has other threads, so only system calls may be made.
[[noreturn]] void BecomeProgram(const char* program, char* const* arguments, int error_fd,
                                int null_fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kCannotStart);  // it was gone before the line above
  setpgid(0, 0);  // Ctrl-C on the terminal is for the parent, which ends us in its own time
  // What the parent ignores would stay ignored, and its handlers would take what comes before the
  // program is there. (Signals that cannot be caught are refused, which is as well.)
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(null_fd, STDIN_FILENO);
  dup2(null_fd, STDOUT_FILENO);
  dup2(error_fd, STDERR_FILENO);
  syscall(SYS_close_range, 3, ~0U, 0);
  execv(program, arguments);
  _exit(kCannotStart);
}

// What became of a process.
struct End {
  absl::Status status;
  bool returns = true;
};

End EndOf(const std::string& worker_id, int wait_status, const std::string& last_error,
          bool is_first) {
  if (WIFSIGNALED(wait_status)) {
    return {Unavailable("worker {} was ended by signal {}", worker_id, WTERMSIG(wait_status))};
  }
  const int code = WEXITSTATUS(wait_status);
  const absl::Status status = Unavailable("worker {} ended with code {}{}{}", worker_id, code,
                                          last_error.empty() ? "" : ": ", last_error);
  switch (code) {
    case static_cast<int>(ExitCode::kUsage):
    case static_cast<int>(ExitCode::kModelRejected):
      return {WithExitCode(status, static_cast<ExitCode>(code)), /*returns=*/false};
    case static_cast<int>(ExitCode::kHardwareUnfit):
      // What the first process found here is lacking for a while only, such as memory that another
      // program, or the process before, has not given back yet.
      return {WithExitCode(status, ExitCode::kHardwareUnfit), /*returns=*/!is_first};
    case kCannotStart:
      return {
          WithExitCode(Unavailable("worker {} could not be started", worker_id), ExitCode::kFailed),
          /*returns=*/false};
    default:
      return {status};
  }
}

}  // namespace

class Supervisor::Impl {
 public:
  explicit Impl(SupervisorOptions options) : options_(std::move(options)) {
    wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    null_ = Fd(open("/dev/null", O_RDWR | O_CLOEXEC));
    SWITCHYARD_CHECK(wake_.is_open() && null_.is_open());
    for (SupervisedProcess& process : options_.processes) {
      children_.push_back({.process = std::move(process), .start_at = 0.0});
    }
    thread_ = std::thread([this] { Run(); });
  }
  ~Impl() {
    is_stopping_ = true;
    Wake();
    thread_.join();
  }

  void Kill(const std::string& worker_id, uint32_t pid) {
    {
      std::lock_guard lock(mutex_);
      to_kill_.emplace_back(worker_id, pid);
    }
    Wake();
  }

  int64_t num_restarts(const std::string& worker_id) const {
    std::lock_guard lock(mutex_);
    const auto at = num_restarts_.find(worker_id);
    return at != num_restarts_.end() ? at->second : 0;
  }
  int64_t num_restarts() const {
    std::lock_guard lock(mutex_);
    int64_t sum = 0;
    for (const auto& [worker_id, count] : num_restarts_) sum += count;
    return sum;
  }

 private:
  struct Child {
    SupervisedProcess process;
    std::optional<double> start_at{};  // not running; nothing = and never again
    pid_t pid = 0;                     // 0 = not running
    Fd pid_fd{};
    Fd output{};
    std::string line{};        // begun, not yet passed on
    std::string last_error{};  // that it ended with
    double started = 0;
    double retry_seconds = 0;  // before the next start
    int num_starts = 0;
  };

  void Wake() {
    const uint64_t one = 1;
    // Full only if a wake-up waits already.
    [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  }

  void Run();
  // Until something happens or is due.
  void Poll();
  void StartChild(Child& child);
  // Makes the process; its id, or 0 with errno set.
  pid_t Launch(Child& child);
  void StartLater(Child& child);
  void ReadOutput(Child& child);
  void PassOn(Child& child, std::string_view line);
  void ReapChild(Child& child);
  void KillRequested();
  bool AnyRuns() const {
    return std::any_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.pid != 0; });
  }

  SupervisorOptions options_;
  Fd wake_;
  Fd null_;
  std::vector<Child> children_;  // of the thread
  std::atomic<bool> is_stopping_{false};
  mutable std::mutex mutex_;                     // guards what follows
  std::map<std::string, int64_t> num_restarts_;  // by worker id
  std::deque<std::pair<std::string, uint32_t>> to_kill_;
  std::thread thread_;
};

void Supervisor::Impl::Run() {
  // The kernel signals a child when the *thread* that forked it ends: this one forks, and lives as
  // long as the supervisor.
  std::optional<double> stop_at;
  bool was_killed = false;
  while (true) {
    if (is_stopping_) {
      if (!AnyRuns()) return;
      const bool is_late = stop_at && Now() >= *stop_at;
      for (Child& child : children_) {
        if (child.pid == 0) continue;
        if (!stop_at) SendSignal(child.pid_fd, SIGTERM);
        if (is_late && !was_killed) SendSignal(child.pid_fd, SIGKILL);
      }
      was_killed = was_killed || is_late;
      if (!stop_at) stop_at = Now() + options_.stop_seconds;
    } else {
      for (Child& child : children_) {
        if (child.pid == 0 && child.start_at && Now() >= *child.start_at) StartChild(child);
      }
      KillRequested();
    }
    Poll();
  }
}

void Supervisor::Impl::Poll() {
  std::vector<pollfd> polled = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  double due = Now() + (is_stopping_ ? 0.05 : 3600.0);
  for (const Child& child : children_) {
    polled.push_back({.fd = child.pid_fd.get(), .events = POLLIN, .revents = 0});
    polled.push_back({.fd = child.output.get(), .events = POLLIN, .revents = 0});
    if (child.pid == 0 && child.start_at) due = std::min(due, *child.start_at);
  }
  const double wait_ms = std::max(0.0, due - Now()) * 1000;
  poll(polled.data(), polled.size(), static_cast<int>(wait_ms) + 1);
  if (polled[0].revents != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t bytes = read(wake_.get(), &count, sizeof(count));
  }
  for (size_t i = 0; i < children_.size(); ++i) {
    // Its last words before its end.
    if (polled[2 * i + 2].revents != 0) ReadOutput(children_[i]);
    if (polled[2 * i + 1].revents != 0) ReapChild(children_[i]);
  }
}

void Supervisor::Impl::StartChild(Child& child) {
  child.start_at.reset();
  child.started = Now();
  child.last_error.clear();
  const pid_t pid = Launch(child);
  if (pid == 0) {
    // Descriptors, processes or memory are short, as they may be for a while.
    const absl::Status status = Unavailable("worker {} could not be started: {}",
                                            child.process.worker_id, std::strerror(errno));
    child.output = Fd();
    StartLater(child);
    return options_.on_exit(child.process.worker_id, 0, status, /*returns=*/true);
  }
  child.pid = pid;
  if (child.num_starts++ > 0) {
    std::lock_guard lock(mutex_);
    ++num_restarts_[child.process.worker_id];
  }
  options_.on_start(child.process.worker_id, static_cast<uint32_t>(pid));
}

pid_t Supervisor::Impl::Launch(Child& child) {
  std::array<int, 2> ends = {-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return 0;
  child.output = Fd(ends[0]);
  const Fd error_end(ends[1]);
  fcntl(child.output.get(), F_SETFL, O_NONBLOCK);
  std::vector<char*> arguments = {const_cast<char*>("switchyard")};
  for (std::string& argument : child.process.arguments) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = ForkWithoutSignals();
  if (pid == 0) {
    BecomeProgram(options_.program.c_str(), arguments.data(), error_end.get(), null_.get(), parent);
  }
  if (pid < 0) return 0;
  child.pid_fd = Fd(OpenPidFd(pid));
  if (child.pid_fd.is_open()) return pid;
  const int pidfd_errno = errno;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  errno = pidfd_errno;
  return 0;
}

void Supervisor::Impl::StartLater(Child& child) {
  child.start_at = Now() + child.retry_seconds;
  child.retry_seconds =
      std::clamp(2 * child.retry_seconds, options_.first_retry_seconds, options_.max_retry_seconds);
}

void Supervisor::Impl::ReadOutput(Child& child) {
  std::array<char, 4096> buffer;
  while (child.output.is_open()) {
    const ssize_t count = read(child.output.get(), buffer.data(), buffer.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      child.output = Fd();
      break;
    }
    for (const char c : std::string_view(buffer.data(), static_cast<size_t>(count))) {
      if (c != '\n') child.line += c;
      if (c == '\n' || child.line.size() >= kMaxLineBytes) {
        PassOn(child, std::exchange(child.line, {}));
      }
    }
  }
  if (!child.line.empty()) PassOn(child, std::exchange(child.line, {}));
}

void Supervisor::Impl::PassOn(Child& child, std::string_view line) {
  WriteMessage(fmt::format("{}{}\n", child.process.prefix, line));
  if (line.starts_with(kErrorPrefix)) child.last_error = line.substr(sizeof(kErrorPrefix) - 1);
}

void Supervisor::Impl::ReapChild(Child& child) {
  int wait_status = 0;
  if (waitpid(child.pid, &wait_status, WNOHANG) != child.pid) return;
  ReadOutput(child);
  child.output = Fd();
  child.pid_fd = Fd();
  const auto pid = static_cast<uint32_t>(std::exchange(child.pid, 0));
  if (is_stopping_) return;
  const End end =
      EndOf(child.process.worker_id, wait_status, child.last_error, child.num_starts == 1);
  if (end.returns) {
    if (Now() - child.started >= options_.healthy_seconds) child.retry_seconds = 0;
    StartLater(child);
  }
  options_.on_exit(child.process.worker_id, pid, end.status, end.returns);
}

void Supervisor::Impl::KillRequested() {
  std::deque<std::pair<std::string, uint32_t>> to_kill;
  {
    std::lock_guard lock(mutex_);
    to_kill.swap(to_kill_);
  }
  for (const auto& [worker_id, pid] : to_kill) {
    for (Child& child : children_) {
      if (child.process.worker_id != worker_id || child.pid != static_cast<pid_t>(pid)) continue;
      LogWarning("worker {} (pid {}) is killed", worker_id, pid);
      SendSignal(child.pid_fd, SIGKILL);
    }
  }
}

Supervisor::Supervisor(SupervisorOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

Supervisor::~Supervisor() = default;

void Supervisor::Kill(const std::string& worker_id, uint32_t pid) { impl_->Kill(worker_id, pid); }

int64_t Supervisor::num_restarts() const { return impl_->num_restarts(); }

int64_t Supervisor::num_restarts(const std::string& worker_id) const {
  return impl_->num_restarts(worker_id);
}

}  // namespace switchyard::app
