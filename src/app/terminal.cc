#include "app/terminal.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "base/status.h"

namespace switchyard::app {

void OpenStandardStreams(char** argv) {
  bool was_taken = false;
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    const int fd_flags = fcntl(fd, F_GETFD);
    // What would not survive exec() has not come through it: a library (gRPC) took the number
    // before main() began.
    const bool is_taken = fd_flags >= 0 && (fd_flags & FD_CLOEXEC) != 0;
    if (fd_flags >= 0 && !is_taken) continue;
    // Output that nobody can see stays an error: not writable.
    const int null = open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
    if (null < 0 || (null != fd && dup2(null, fd) != fd)) _exit(1);
    if (null != fd) close(null);
    was_taken |= is_taken;
  }
  if (!was_taken) return;
  // The library still means its own file by the number, so it begins anew.
  execv("/proc/self/exe", argv);
  _exit(1);
}

bool UseColor() {
  const char* no_color = std::getenv("NO_COLOR");
  return IsTerminal(STDERR_FILENO) && (no_color == nullptr || *no_color == '\0');
}

ProgressBar::Options TerminalProgressOptions(ProgressBar::Unit unit) {
  ProgressBar::Options options;
  options.enabled = IsTerminal(STDERR_FILENO);
  options.color = UseColor();
  options.unit = unit;
  return options;
}

absl::Status WriteOutput(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return DataLoss("cannot write to standard output: {}", std::strerror(errno));
  }
  return absl::OkStatus();
}

void WriteMessage(std::string_view text) { (void)std::fwrite(text.data(), 1, text.size(), stderr); }

}  // namespace switchyard::app
