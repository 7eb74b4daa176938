#include "app/terminal.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "base/status.h"

namespace switchyard::app {

void OpenStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is `fd`. Output that nobody can see stays an error: not writable.
    const int flags = fd == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    if (open("/dev/null", flags) != fd) _exit(1);
  }
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
