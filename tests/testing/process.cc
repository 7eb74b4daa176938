#include "testing/process.h"

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"

namespace switchyard::testing {
namespace {

[[noreturn]] void Exec(const std::vector<std::string>& arguments, const ProcessOptions& options,
                       int in, int out, int err) {
  if (!options.out_path.empty()) out = open(options.out_path.c_str(), O_WRONLY);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  for (int fd = 3; fd < 64; ++fd) close(fd);
  if (options.max_file_bytes > 0) {
    const auto bytes = static_cast<rlim_t>(options.max_file_bytes);
    const rlimit limit = {bytes, bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_IGN);  // the write fails with EFBIG instead
  }
  std::vector<char*> argv;
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  for (const std::string& variable : options.environment) {
    putenv(const_cast<char*>(variable.c_str()));
  }
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace

ProcessResult RunProcess(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  std::array<int, 2> in, out, err;
  SWITCHYARD_CHECK(pipe(in.data()) == 0 && pipe(out.data()) == 0 && pipe(err.data()) == 0);
  const pid_t pid = fork();
  SWITCHYARD_CHECK(pid >= 0);
  if (pid == 0) Exec(arguments, options, in[0], out[1], err[1]);
  close(in[0]);
  close(out[1]);
  close(err[1]);
  std::signal(SIGPIPE, SIG_IGN);
  // Inputs of tests fit a pipe's buffer.
  SWITCHYARD_CHECK(write(in[1], options.input.data(), options.input.size()) ==
                   static_cast<ssize_t>(options.input.size()));
  close(in[1]);

  ProcessResult result;
  std::array<pollfd, 2> polled = {{{out[0], POLLIN, 0}, {err[0], POLLIN, 0}}};
  int num_open = 2;
  bool is_told = !options.then;
  while (num_open > 0) {
    poll(polled.data(), polled.size(), -1);
    for (size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].fd < 0 || polled[i].revents == 0) continue;
      std::array<char, 4096> buffer;
      const ssize_t count = read(polled[i].fd, buffer.data(), buffer.size());
      if (count <= 0) {
        polled[i].fd = -1;
        --num_open;
        continue;
      }
      (i == 0 ? result.out : result.err).append(buffer.data(), static_cast<size_t>(count));
    }
    if (!is_told && result.out.size() >= options.when_out_has) {
      is_told = true;
      options.then(pid);
    }
  }
  close(out[0]);
  close(err[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

BackgroundProcess::BackgroundProcess(const std::vector<std::string>& arguments) {
  std::array<int, 2> output;
  SWITCHYARD_CHECK(pipe2(output.data(), O_CLOEXEC) == 0);
  const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
  pid_ = fork();
  SWITCHYARD_CHECK(pid_ >= 0);
  if (pid_ == 0) Exec(arguments, {}, in, output[1], output[1]);
  close(in);
  close(output[1]);
  output_fd_ = output[0];
  reader_ = std::thread([this] { Collect(); });
}

BackgroundProcess::~BackgroundProcess() {
  if (!is_reaped_) {
    kill(pid_, SIGKILL);
    Wait();
  }
}

void BackgroundProcess::Signal(int signal) const { SWITCHYARD_CHECK(kill(pid_, signal) == 0); }

void BackgroundProcess::Collect() {
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t count = read(output_fd_, buffer.data(), buffer.size());
    std::lock_guard lock(mutex_);
    if (count > 0) output_.append(buffer.data(), static_cast<size_t>(count));
    is_closed_ = count <= 0;
    changed_.notify_all();
    if (is_closed_) return;
  }
}

bool BackgroundProcess::WaitForOutput(const std::string& text, int count, double seconds) {
  const auto has_come = [&] {
    int found = 0;
    for (size_t at = output_.find(text); at != std::string::npos;
         at = output_.find(text, at + text.size())) {
      ++found;
    }
    return found >= count;
  };
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [&] { return is_closed_ || has_come(); });
  return has_come();
}

std::string BackgroundProcess::output() const {
  std::lock_guard lock(mutex_);
  return output_;
}

ProcessResult BackgroundProcess::Wait() {
  if (is_reaped_) return result_;
  reader_.join();  // ends with the program
  close(output_fd_);
  int status = 0;
  waitpid(pid_, &status, 0);
  is_reaped_ = true;
  if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
  result_.out = output_;
  return result_;
}

}  // namespace switchyard::testing
